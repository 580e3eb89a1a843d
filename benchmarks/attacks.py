"""What is tried against nightquant's readers, how often, and what gets through: ``python -m benchmarks.attacks``.

Every attack is made by a generator from a seed, so that the same ones come again. An input counts as *refused* where it
ends in an error that a user can read, as *through* where it changes a result's value, leaves its folder, takes memory
that the file does not hold, or ends in any other exception, and else as *harmless*. Changed values of a checkpoint are
not counted: only its SHA-256 in the workload file can tell.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import io
import json
import os
import pickle
import random
import socket
import tarfile
import tempfile
import threading
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from storage.artifacts import Manifest
from storage.errors import NightquantError
from storage.freshness import stated
from storage.keys import Signer
from storage.pointer import Pointer, Switch, signed
from storage.results.catalog import CATALOG, build
from storage.results.checksum import problem_of
from storage.results.compact import whole_month
from storage.results.layout import find_files, read_rows
from storage.results.query import run_query
from storage.results.tables import PROMOTIONS
from storage.results.writer import serialized, validated
from storage.root import StoreRoot
from storage.seal import MANIFEST, check_signature, check_sums, read_manifest, sign, write_sums
from storage.transfer import fetch
from tasks.archive import extract
from tasks.checkpoint.state_file import read_state
from tasks.workload import read_workload
from tests.storage.results.rows import promotion
from tests.tasks.bundle.mutations import mutate

Outcome = Literal["refused", "harmless", "through"]
Attack = Callable[[random.Random, int, Path], Iterator[Outcome]]
_PARTS = ("..", ".", "", "a", "/", "\\", "\0", "a" * 300, "~", "é", "C:", "\x1b[2J")


def bit_flips(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Single bits of a results file, every one if there are no more than `tries`."""
    content, _ = _results()
    places = range(8 * len(content))
    for place in places if len(places) <= tries else chance.sample(places, tries):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        yield "refused" if problem_of(bytes(changed)) else "through"


@cache
def _results() -> tuple[bytes, bytes]:
    """A run's results file, and that of a compacted month."""
    rows = validated(PROMOTIONS, [promotion("r1", dt.date(2026, 3, 1))], "r1")
    return serialized(PROMOTIONS, rows), whole_month(PROMOTIONS, rows, ["r1"])


def results_files(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Damaged results files, with a digest and without, as versions before there was one wrote them."""
    root = StoreRoot.of(folder)
    names = "results/promotions/month=2026-03/r1.parquet", "results/promotions/compacted/2026-03-0001.pq"
    for _ in range(tries):
        which, has_digest = chance.randrange(2), chance.random() < 0.5
        good = _results()[which]
        content = good if has_digest else good.replace(b"nightquant.", b"anybodyelse")
        content = mutated(content, chance, changes=chance.randint(1, 5))
        root.put(names[which], content)

        def read() -> None:
            for entry in find_files(root, PROMOTIONS).current:
                read_rows(root, entry.name).to_pylist()
            if has_digest and content != good:  # noqa: B023 - called at once
                raise AssertionError("a changed file was read")

        yield outcome_of(read)
        root.delete(names[which])


@cache
def _catalog() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        root = StoreRoot.of(folder)
        root.put("results/promotions/month=2026-03/r1.parquet", _results()[0])
        build(root, Path(folder, CATALOG))
        return Path(folder, CATALOG).read_bytes()


def catalogs(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Catalogs with changed or missing bytes."""
    good = _catalog()
    (folder / CATALOG).write_bytes(good)
    rows = run_query(folder, "from promotions")

    def read() -> None:
        if run_query(folder, "from promotions") != rows:
            raise AssertionError("other rows were read")

    for _ in range(tries):
        changed = bytearray(good)
        for _ in range(chance.randint(1, 5)):
            changed[chance.choice((chance.randrange(len(good)), chance.randrange(12_288)))] = chance.randrange(256)
        (folder / CATALOG).write_bytes(changed[: chance.choice((len(good), len(good), chance.randrange(len(good))))])
        yield outcome_of(read)


def bundles(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Changed bundles: as they are, with a list of sums made anew, and signed before that."""
    key = Ed25519PrivateKey.generate()
    for number in range(tries):
        bundle = folder / f"bundle-{number}"
        bundle.mkdir()
        (bundle / "model.ts").write_bytes(b"weights")
        (bundle / MANIFEST).write_text(json.dumps({"model": {"outputs": [{"name": "y", "tolerance": 1e-6}]}}))
        write_sums(bundle)
        before, kind = check_sums(bundle), chance.randrange(3)
        if kind == 0:
            mutate(bundle, chance)
            found = outcome_of(lambda: check_sums(bundle))  # noqa: B023 - called at once
            yield "through" if found == "harmless" else found
            continue
        sign(bundle, key)
        (bundle / MANIFEST).write_bytes(mutated((bundle / MANIFEST).read_bytes(), chance, changes=3))
        after = write_sums(bundle)
        if kind == 1:
            yield outcome_of(lambda: read_manifest(bundle, after))  # noqa: B023 - called at once
        else:
            found = outcome_of(lambda: check_signature(bundle, [key.public_key()], after))  # noqa: B023 - called at once
            yield "through" if found == "harmless" and after != before else found


_FILE = bytes(range(256)) * 8
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Content-Length", (str(len(_FILE)), "0", "9" * 5000, "-1", "²", "7")),
    ("Content-Range", (f"bytes 0-2047/{len(_FILE)}", "bytes 9-3/2", "bytes */5", "9" * 5000, "x")),
    ("Transfer-Encoding", ("chunked", "gzip", "x")),
    ("Content-Encoding", ("gzip", "br")),
    (
        "Location",
        ("file:///etc/passwd", "http://example.org/", "http://[bad", "ftp://x/", "//", "http://127.0.0.1:99999/"),
    ),
    ("Set-Cookie", ("a=b; expires=x", "=", "\x01")),
)
_STATUSES = ("200 OK", "206 Partial Content", "302 Found", "416 No", "503 Busy", "404 None", "999 x", "99999", "", "²")


def downloads(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Answers of an HTTP server: odd status lines, lengths, ranges, encodings, redirects and bodies."""
    answers: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the listener was closed
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(answers.pop() if answers else b"HTTP/1.1 404 None\r\n\r\n")
                except OSError:  # the client has had enough
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/weights.bin"
        for _ in range(tries):
            answers[:] = [_answer(chance) for _ in range(chance.randint(1, 3))]
            yield outcome_of(lambda: _downloaded(uri, folder))
        listener.shutdown(socket.SHUT_RDWR)


def _answer(chance: random.Random) -> bytes:
    chosen = [(name, chance.choice(values)) for name, values in _HEADERS if chance.random() < 0.4]
    head = "\r\n".join([f"HTTP/1.1 {chance.choice(_STATUSES)}", *(f"{name}: {value}" for name, value in chosen)])
    body = chance.choice((_FILE, _FILE[: chance.randrange(2048)], bytes(10_000), b"", b"5\r\nhello\r\n0\r\n\r\n"))
    return mutated(head.encode(), chance, changes=chance.choice((0, 0, 2))) + b"\r\n\r\n" + body


def _downloaded(uri: str, folder: Path) -> None:
    digest = hashlib.sha256(_FILE).hexdigest()
    with fetch(uri, folder, sha256=digest, max_bytes=4096, retries=2, first_wait_s=0) as source:
        content = source.path().read_bytes()
    if content != _FILE or sum(path.stat().st_size for path in folder.iterdir()) > 4096:
        raise AssertionError("another file, or a longer one, was kept")


def names_in_manifests(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Names of files in an artifact's manifest from a bucket that others write to."""
    for _ in range(tries):
        name = chance.choice(("/", "", "\\")).join(chance.choices(_PARTS, k=chance.randint(1, 6)))
        document = {
            "kind": "corpus",
            "digest": "0" * 64,
            "made_from": {},
            "files": {name: {"bytes": 1, "sha256": "0" * 64}},
        }
        try:
            Manifest.model_validate(document)
        except ValidationError:
            yield "refused"
        else:
            inside = (folder / name).resolve().is_relative_to(folder.resolve())
            yield "harmless" if inside and (folder / name).resolve() != folder.resolve() else "through"


def archives(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Zip and tar members with odd names, and archives with odd bytes."""
    for number in range(tries):
        path, target = folder / "archive", folder / f"target-{number}"
        target.mkdir()
        name = "/".join(chance.choices(_PARTS, k=chance.randint(1, 4)))
        path.write_bytes(
            mutated(_archive(name, is_zip=chance.random() < 0.5), chance, changes=chance.choice((0, 0, 3)))
        )
        yield outcome_of(lambda: extract(path, target, max_bytes=1000))  # noqa: B023 - called at once


def _archive(name: str, *, is_zip: bool) -> bytes:
    stream = io.BytesIO()
    if is_zip:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), b"content")
    else:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as packed:
            member = tarfile.TarInfo(name)
            member.size = 7
            packed.addfile(member, io.BytesIO(b"content"))
    return stream.getvalue()


def checkpoints(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Damaged state dicts in both of torch's formats, and tensors that claim more than their file holds."""
    path, ran = folder / "weights.pth", folder / "code-ran"
    for _ in range(tries):
        if chance.random() < 0.1:
            path.write_bytes(pickle.dumps({"weight": _Code(str(ran))}, protocol=chance.randint(0, 5)))
            found = outcome_of(lambda: read_state(path))
            yield "through" if ran.exists() else found
            continue
        stream, is_zip = io.BytesIO(), chance.random() < 0.5
        claim = chance.choice((1, 1 << 20, 1 << 32))
        tensors = {"weight": torch.zeros(1).expand(claim)}
        torch.save(tensors, stream, _use_new_zipfile_serialization=is_zip)
        path.write_bytes(mutated(stream.getvalue(), chance, changes=chance.choice((0, 1, 5))))
        yield outcome_of(lambda: _small(read_state(path)))


class _Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._path,)


def _small(state: dict[str, torch.Tensor]) -> None:
    if sum(tensor.numel() for tensor in state.values()) > 1 << 16:
        raise AssertionError("a small file gave a large tensor")


def workload_files(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Workload files with changed bytes, deep nesting and long numbers."""
    good = (Path(__file__).parents[1] / "flows/workloads/lstm-demo.toml").read_bytes()
    path = folder / "workload.toml"
    for _ in range(tries):
        kind = chance.randrange(3)
        if kind == 0:
            content = mutated(good, chance, changes=chance.randint(1, 20))
        else:
            deep = b"[" * chance.choice((10, 1000, 100_000)) if kind == 1 else b"9" * chance.choice((19, 30, 5000))
            content = good.replace(b"seed = 29592", b"seed = " + deep)
        path.write_bytes(content)
        yield outcome_of(lambda: read_workload(path))


def pointers(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """What a mirror may serve for the newest signed current.json: an older, changed or stranger's one, another's."""
    keys = [Ed25519PrivateKey.from_private_bytes(chance.randbytes(32)) for _ in range(2)]
    signer, stranger = (Signer((key,), dt.timedelta(days=30)) for key in keys)
    now, path, state = dt.datetime.now(dt.UTC), folder / "current.json", folder / "seen.json"

    def made(number: int, workload: str = "word-lm", by: Signer = signer) -> Pointer:
        version, sums = f"2026-11-21-{number:012x}", f"{number:064x}"
        at = now - dt.timedelta(hours=1) + dt.timedelta(seconds=number)
        switch = Switch(action="promote", version=version, sha256sums=sums, at=at, by="a night", reason="fastest")
        return signed(Pointer(workload=workload, version=version, sha256sums=sums, history=(switch,)), by, None, at)

    def taken() -> None:
        if stated(path, "word-lm", signer.public, state=state).sha256sums != newest.sha256sums:
            raise AssertionError("another bundle than the current one was believed")

    newest = made(999)
    path.write_text(newest.text(), encoding="utf-8")
    taken()
    for _ in range(tries):
        kind = chance.randrange(4)
        served = made(chance.randrange(999)) if kind == 0 else newest
        if kind == 1:
            served = made(chance.randrange(2000), chance.choice(("resnet18", "word-lm-2")))
        if kind == 2:
            served = made(chance.randrange(1000, 2000), by=stranger)
        content = served.text().encode()
        path.write_bytes(mutated(content, chance, chance.randint(1, 5)) if kind == 3 else content)
        yield outcome_of(taken)


def mutated(content: bytes, chance: random.Random, changes: int) -> bytes:
    """Some bytes of `content` changed, removed or doubled."""
    changed = bytearray(content)
    for _ in range(changes):
        place = chance.randrange(len(changed))
        kind = chance.randrange(3)
        if kind == 0:
            changed[place] = chance.randrange(256)
        elif kind == 1:
            del changed[place : place + chance.randint(1, 8)]
        else:
            changed[place:place] = changed[place : place + chance.randint(1, 8)]
    return bytes(changed)


def outcome_of(attack: Callable[[], object]) -> Outcome:
    """What came of one attack."""
    try:
        attack()
    except NightquantError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - that any other is raised is the finding
        print(f"  through: {type(error).__name__}: {str(error)[:200]!r}")
        return "through"
    return "harmless"


ATTACKS: dict[str, Attack] = {
    "flipped bits of a results file": bit_flips,
    "results files": results_files,
    "catalogs": catalogs,
    "bundles": bundles,
    "HTTP downloads": downloads,
    "names in an artifact's manifest": names_in_manifests,
    "archives": archives,
    "checkpoints": checkpoints,
    "workload files": workload_files,
    "signed pointers of a mirror": pointers,
}


def main() -> None:
    """Try every attack and print the counts; the exit code is 1 if one got through."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=10_000, help="of each attack, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ATTACKS, nargs="+", default=[*ATTACKS], help="kinds of attack")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Detected pickle protocol")
    through = 0
    print(f"{'attack':<34}{'tried':>8}{'refused':>9}{'harmless':>10}{'through':>9}")
    for name in arguments.only:
        attack = ATTACKS[name]
        with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
            counts = Counter(attack(random.Random(arguments.seed), arguments.tries, Path(folder)))
        through += counts["through"]
        numbers = f"{counts['refused']:>9}{counts['harmless']:>10}{counts['through']:>9}"
        print(f"{name:<34}{counts.total():>8}{numbers}", flush=True)
    raise SystemExit(1 if through else 0)


if __name__ == "__main__":
    main()
