"""Faults at every k of whatever changes a store: ``python -m benchmarks.faults``.

The operations are an append, a compaction, a publish, a promotion and a gc. Each runs on a copy of a small store, once
for every k and kind of fault: at the k-th change of the store the process is killed, or the call fails with EIO, or the
disk is full from there on, or the power goes, in three ways each (see `benchmarks.faults.disk`). On an object store
(moto's server) a request is lost before it arrives, or its answer. Afterwards the store is read as it is, the operation
is done again, and ``store gc`` and ``store compact`` repair the rest where ``store check`` names them:

lost
    Something that was there before, or that the operation had promised, is not there, or not after the repair.
torn
    Something is there in part, or ``store check`` finds a problem that the repair does not end.
tracebacks
    The operation ended in another exception than one of nightquant's own.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.operations import LOOSE, OPERATIONS, Facts, Operation, facts_of, fill, leave_something, mended
from benchmarks.faults.shim import Killed, Kind, Shim
from storage.errors import NightquantError
from storage.object_root import ObjectRoot
from storage.root import StoreRoot, set_cache_folder
from tests.storage.s3_server import credentials, s3_server

LOCAL: tuple[Kind, ...] = ("kill", "EIO", "ENOSPC")
REMOTE: tuple[Kind, ...] = ("kill", "killed before the answer", "EIO", "answer lost")


@dataclass(frozen=True)
class Finding:
    """One store after one fault: problems by what they count as."""

    operation: str
    kind: str
    k: int
    call: str
    lost: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    tracebacks: tuple[str, ...] = ()


class Ground:
    """Where the stores of the trials are: folders, or prefixes of a bucket with their caches in folders."""

    def __init__(self, scratch: Path, bucket: str = "") -> None:
        self.scratch, self.bucket = scratch, bucket
        self._template = scratch / "template"
        fill(self._template)
        self.before = facts_of(StoreRoot.of(self._template))
        leave_something(self._template)

    def fresh(self) -> tuple[StoreRoot, Path]:
        """A store as it is before each operation, and the folder of it (of its cache) that is watched."""
        folder = self.scratch / uuid.uuid4().hex
        if not self.bucket:
            shutil.copytree(self._template, folder, copy_function=_copy_with_links())
            return StoreRoot.of(folder), folder
        folder.mkdir()
        set_cache_folder(str(folder))
        root = ObjectRoot(f"s3://{self.bucket}/{folder.name}")
        for path in self._template.rglob("*"):
            name = path.relative_to(self._template)
            if path.is_file() and name.parts[0] != ".locks" and ".tmp" not in name.parts and path.suffix != ".tmp":
                root.put(str(name), path)
        return root, folder


def findings(
    ground: Ground,
    operation: Operation,
    kinds: tuple[Kind, ...],
    *,
    stride: int = 1,
    repaired: int = 1,
    power_cuts: bool = True,
) -> Iterator[Finding]:
    """Do an operation with a fault at every `stride`-th change, and repair the store after every `repaired`-th of them.

    Power cuts come with ``kill``, on local stores.
    """
    follow = power_cuts and "kill" in kinds and not ground.bucket
    changes = len(_attempt(ground, operation, at=0).shim.calls)
    for number, k in enumerate(range(1, changes + 1, stride)):
        is_repaired = number % repaired == 0
        for kind in kinds:
            trial = _attempt(ground, operation, at=k, kind=kind, follow=follow and kind == "kill")
            # The power may go at the moment of a kill: first, because judging a store changes it.
            yield from _power_cuts(ground, trial, is_repaired)
            yield _judged(ground, trial, trial.root, kind, is_repaired)
    if follow:
        yield from _power_cuts(ground, _attempt(ground, operation, at=changes + 1, follow=True), True)


@dataclass(frozen=True)
class _Trial:
    operation: Operation
    root: StoreRoot
    folder: Path
    shim: Shim
    at: int
    promised: tuple[str, ...]
    tracebacks: tuple[str, ...]


def _attempt(ground: Ground, operation: Operation, *, at: int, kind: Kind = "kill", follow: bool = False) -> _Trial:
    root, folder = ground.fresh()
    promised: list[str] = []
    tracebacks: list[str] = []
    with Shim(folder, root if isinstance(root, ObjectRoot) else None, at=at, kind=kind, follow=follow) as shim:
        try:
            operation.do(root, promised.append)
        except (Killed, NightquantError):
            pass
        except Exception as error:  # noqa: BLE001 - that any other is raised is the finding
            tracebacks.append(f"{type(error).__name__}: {error}")
    return _Trial(operation, root, folder, shim, at, tuple(promised), tuple(tracebacks))


def _power_cuts(ground: Ground, trial: _Trial, is_repaired: bool) -> Iterator[Finding]:
    if trial.shim.disk is None:
        return
    for way, write in trial.shim.disk.after_power_cuts(random.Random(trial.at)):
        folder = ground.scratch / uuid.uuid4().hex
        folder.mkdir()
        write(folder)
        yield _judged(ground, trial, StoreRoot.of(folder), f"power cut: {way}", is_repaired)


def _judged(ground: Ground, trial: _Trial, root: StoreRoot, kind: str, is_repaired: bool) -> Finding:
    operation = trial.operation
    kept = {name: what for name, what in ground.before.items() if name not in operation.removes}
    lost, torn = _missing(root, kept, trial.promised)
    if is_repaired:
        again: list[str] = []
        try:
            operation.do(root, again.append)
            more_lost, more_torn = _missing(root, kept, tuple(again))
            lost, torn = lost + more_lost, torn + more_torn
            torn += [f"after the repair: {problem}" for problem in mended(root)]
            needed = {name: what for name, what in kept.items() if name not in LOOSE}
            more_lost, more_torn = _missing(root, needed, ())
            lost, torn = lost + more_lost, torn + more_torn
        except Exception as error:  # noqa: BLE001 - a store that cannot be used again is the finding
            torn.append(f"done again: {type(error).__name__}: {error}")
    call = trial.shim.calls[trial.at - 1] if trial.at <= len(trial.shim.calls) else "the end"
    if root.local is not None:
        shutil.rmtree(root.local, ignore_errors=True)
    elif trial.folder.exists():
        shutil.rmtree(trial.folder)
    return Finding(operation.name, kind, trial.at, call, tuple(lost), tuple(torn), trial.tracebacks)


def _missing(root: StoreRoot, kept: Facts, promised: tuple[str, ...]) -> tuple[list[str], list[str]]:
    facts = facts_of(root)
    lost = [name for name, what in kept.items() if facts.get(name, what[:5]) != what]
    lost += [name for name in (*kept, *promised) if name not in facts]
    return lost, [f"{name} is {what}" for name, what in facts.items() if what.startswith("torn")]


def _copy_with_links() -> Callable[[str, str], object]:
    """Copy a tree's files, hard links as such: a compacted month's two names are one file."""
    copies: dict[int, str] = {}

    def copy(source: str, target: str) -> object:
        first = copies.setdefault(Path(source).stat().st_ino, target)
        return Path(target).hardlink_to(first) if first != target else shutil.copy2(source, target)

    return copy


@contextmanager
def _object_store() -> Iterator[str]:
    """A bucket on moto's server in this process; credentials and endpoint go into the environment."""
    import boto3

    with s3_server() as endpoint:
        os.environ.update(credentials(endpoint))
        boto3.client("s3").create_bucket(Bucket="faults")
        yield "faults"


def main() -> None:
    """Do every operation with every fault and print the counts; the exit code is 1 if one is not zero."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[operation.name for operation in OPERATIONS], help="one operation")
    parser.add_argument("--place", choices=("local", "s3"), help="one kind of store")
    arguments = parser.parse_args()
    is_good = True
    print(f"{'store':<7}{'operation':<12}{'fault':<38}{'tried':>6}{'lost':>6}{'torn':>6}{'tracebacks':>12}")
    for place, kinds in (("local", LOCAL), ("s3", REMOTE)):
        if arguments.place not in (None, place):
            continue
        with (
            tempfile.TemporaryDirectory(prefix="nightquant-") as scratch,
            _object_store() if place == "s3" else nullcontext("") as bucket,
        ):
            ground = Ground(Path(scratch), bucket)
            for operation in OPERATIONS:
                if arguments.only in (None, operation.name):
                    is_good &= _print(place, findings(ground, operation, kinds))
    raise SystemExit(0 if is_good else 1)


def _print(place: str, found: Iterator[Finding]) -> bool:
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for finding in found:
        bad = {"lost": bool(finding.lost), "torn": bool(finding.torn), "tracebacks": bool(finding.tracebacks)}
        counts[finding.operation, finding.kind].update({"tried": 1} | bad)
        if any(bad.values()):
            what = "; ".join((*finding.lost, *finding.torn, *finding.tracebacks))
            print(f"  {finding.operation}, {finding.kind} at {finding.k} ({finding.call}): {what}", flush=True)
    for (operation, kind), count in counts.items():
        numbers = f"{count['tried']:>6}{count['lost']:>6}{count['torn']:>6}{count['tracebacks']:>12}"
        print(f"{place:<7}{operation:<12}{kind:<38}{numbers}", flush=True)
    return not any(count[what] for count in counts.values() for what in ("lost", "torn", "tracebacks"))


if __name__ == "__main__":
    main()
