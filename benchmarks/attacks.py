"""What is tried against nightquant's readers, how often, and what gets through: ``python -m benchmarks.attacks``.

Every attack is made by a generator from a seed, so that the same ones come again. An input counts as *refused* where it
ends in an error that a user can read, as *through* where it changes a result's value, leaves its folder, takes memory
that the file does not hold, or ends in any other exception, and else as *harmless*. Changed values of a checkpoint are
not counted: only its SHA-256 in the workload file can tell.
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import random
import tarfile
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
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
from storage.results.checksum import problem_of
from storage.results.tables import PROMOTIONS
from storage.results.writer import serialized, validated
from tasks.archive import extract
from tasks.checkpoint.state_file import read_state
from tasks.workload import read_workload

Outcome = Literal["refused", "harmless", "through"]
Attack = Callable[[random.Random, int, Path], Iterator[Outcome]]
_PARTS = ("..", ".", "", "a", "/", "\\", "\0", "a" * 300, "~", "é", "C:", "\x1b[2J")


def bit_flips(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Single bits of a results file, every one if there are no more than `tries`."""
    rows = [
        {
            "run_id": "r1",
            "night": dt.date(2026, 3, 1),
            "workload": "word-lm",
            "recipe": "int8",
            "runtime": "eager",
            "decision": "promote",
            "decided_at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC),
            "objective": "fastest",
            "rules": "[]",
            "reason": "fastest of those that pass",
        }
    ]
    content = serialized(PROMOTIONS, validated(PROMOTIONS, rows, "r1"))
    places = range(8 * len(content))
    for place in places if len(places) <= tries else chance.sample(places, tries):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        yield "refused" if problem_of(bytes(changed)) else "through"


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
    path = folder / "weights.pth"
    for _ in range(tries):
        stream, is_zip = io.BytesIO(), chance.random() < 0.5
        claim = chance.choice((1, 1 << 20, 1 << 32))
        tensors = {"weight": torch.zeros(1).expand(claim)}
        torch.save(tensors, stream, _use_new_zipfile_serialization=is_zip)
        path.write_bytes(mutated(stream.getvalue(), chance, changes=chance.choice((0, 1, 5))))
        yield outcome_of(lambda: _small(read_state(path)))


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
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Detected pickle protocol")
    through = 0
    print(f"{'attack':<34}{'tried':>8}{'refused':>9}{'harmless':>10}{'through':>9}")
    for name, attack in ATTACKS.items():
        with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
            counts = Counter(attack(random.Random(arguments.seed), arguments.tries, Path(folder)))
        through += counts["through"]
        numbers = f"{counts['refused']:>9}{counts['harmless']:>10}{counts['through']:>9}"
        print(f"{name:<34}{counts.total():>8}{numbers}", flush=True)
    raise SystemExit(1 if through else 0)


if __name__ == "__main__":
    main()
