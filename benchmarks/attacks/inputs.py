"""Attacks on what a night begins with: workload files, archives, checkpoints and a shared store's artifacts."""

from __future__ import annotations

import io
import pickle
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import ValidationError

from benchmarks.attacks.outcome import Outcome, mutated, outcome_of
from storage.artifacts import Manifest
from tasks.data.archive import extract
from tasks.data.weights import read_state
from tasks.workload import read_workload

_PARTS = ("..", ".", "", "a", "/", "\\", "\0", "a" * 300, "~", "é", "C:", "\x1b[2J")


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
        around = folder / f"around-{number}"
        path, target = folder / "archive", around / "as/deep/as/a/name"
        target.mkdir(parents=True)
        name = "/".join(chance.choices(_PARTS, k=chance.randint(1, 4)))
        path.write_bytes(
            mutated(_archive(name, is_zip=chance.random() < 0.5), chance, changes=chance.choice((0, 0, 3)))
        )
        found = outcome_of(lambda: extract(path, target, "archive"))  # noqa: B023 - called at once
        files = [each for each in around.rglob("*") if not each.is_dir()]
        yield found if all(each.is_relative_to(target) for each in files) else "through"


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
        tensors: dict[str, object] = {"weight": torch.zeros(1).expand(claim)}
        if chance.random() < 0.5:
            tensors = {"state_dict": tensors, "arguments": _Code(str(ran))}
        torch.save(tensors, stream, _use_new_zipfile_serialization=is_zip)
        path.write_bytes(mutated(stream.getvalue(), chance, changes=chance.choice((0, 1, 5))))
        found = outcome_of(lambda: _small(read_state(path)))
        yield "through" if ran.exists() else found


class _Code:
    """Makes a folder when it is unpickled, by a function that torch's unpickler does not block of itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (f"import os; os.mkdir({self._path!r})",)


def _small(state: dict[str, torch.Tensor]) -> None:
    if sum(tensor.numel() for tensor in state.values()) > 1 << 16:
        raise AssertionError("a small file gave a large tensor")


def workload_files(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Workload files with changed bytes, deep nesting and long numbers."""
    good = (Path(__file__).parents[2] / "flows/workloads/lstm-demo.toml").read_bytes()
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
