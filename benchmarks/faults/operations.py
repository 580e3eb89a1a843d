"""The store that faults happen to, the operations on it, and what of it must be there afterwards."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts import ArtifactStore, artifact_digest, artifacts_in
from storage.bundles import BundleStore
from storage.check import check
from storage.errors import NightquantError, StoreError
from storage.gc import collect, leftovers
from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.layout import find_files, read_rows
from storage.results.tables import MEASUREMENTS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from storage.seal import check_sums
from tests.storage import bundle_files
from tests.storage.results.rows import at, baseline, measurement, run_row

WORKLOAD = "word-lm"
LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
# A month in which a compaction replaces the runs' files by one, one that it merges, and one that is not over.
_WHOLE, _FINISHED, _OPEN = dt.date(2026, 1, 5), dt.date(2026, 2, 5), dt.datetime.now(dt.UTC).date()
_NEW = {"seed": "new"}
_LOOSE = ("loose-1", "loose-2")
# What a collection may remove.
LOOSE = frozenset(f"artifact {artifact_digest('quantized', {'seed': seed})[:12]}" for seed in (*_LOOSE, "new"))

# What a store holds, by a name (run, artifact, bundle, pointer); "torn: …" is neither whole nor absent.
Facts = dict[str, str]


@dataclass(frozen=True)
class Operation:
    """Something that changes a store: `do` calls its argument with the name of each fact once it is promised.

    ``removes`` names the facts that may go.
    """

    name: str
    do: Callable[[StoreRoot, Callable[[str], None]], None]
    removes: frozenset[str] = frozenset()


def fill(place: StoreRoot | Path | str) -> None:
    """Make the store that every operation begins with."""
    root = StoreRoot.of(place)
    data = _artifact(root, "corpus", {"seed": "data"})
    model = _artifact(root, "quantized", {"data": data})
    for seed in _LOOSE:
        _artifact(root, "quantized", {"seed": seed})
    for run, night in (("w1", _WHOLE), ("w2", _WHOLE), ("f1", _FINISHED), ("f2", _FINISHED)):
        if run == "f1":
            compact(root, now=LATER)
        _append(root, run, night, artifact_digest=model)
    _append(root, "o1", _OPEN)
    refresh(root)
    bundles = BundleStore(root)
    for number in (1, 2):
        bundle_files.publish(bundles, number, WORKLOAD, files=1)


def facts_of(root: StoreRoot) -> Facts:
    """What a store holds now, read as a fresh process would."""
    facts: Facts = {}
    try:
        files = find_files(root, MEASUREMENTS).current
        rows = [row for entry in files for row in read_rows(root, MEASUREMENTS, entry.name).to_pylist()]
    except StoreError as error:
        rows, facts["results"] = [], f"torn: {error.message}"
    for run in {row["run_id"] for row in rows}:
        found = sorted(row["recipe"] for row in rows if row["run_id"] == run)
        facts[f"run {run}"] = "whole" if found == ["dynamic", "float"] else f"torn: {found}"
    store = ArtifactStore(root)
    for artifact in artifacts_in(root):
        name = f"artifact {artifact.digest[:12]}"
        try:
            if store.find(artifact.kind, artifact.digest) is not None:
                facts[name] = "whole"
        except StoreError as error:
            facts[name] = f"torn: {error.message}"
    facts.update(_handed_over(BundleStore(root)))
    return facts


def _handed_over(bundles: BundleStore) -> Iterator[tuple[str, str]]:
    for version in bundles.versions(WORKLOAD):
        try:
            with bundles.opened(f"handoff/{WORKLOAD}/{version}") as copy:
                yield f"bundle {version}", f"whole: {check_sums(copy)}"
        except NightquantError as error:
            yield f"bundle {version}", f"torn: {error}"
    try:
        pointer = bundles.pointer(WORKLOAD)
    except StoreError as error:
        yield "pointer", f"torn: {error}"
        return
    for switch in pointer.history if pointer else ():
        yield f"switch to {switch.version}", "whole"
    if pointer is not None and pointer.version not in bundles.versions(WORKLOAD):
        yield "pointer", f"torn: it names {pointer.version}, which is not there"


def mended(root: StoreRoot) -> list[str]:
    """What is still wrong with a store after a collection and a compaction, where something is left for them."""
    tomorrow = time.time() + 3 * 24 * 3600
    if leftovers(root, tomorrow):
        collect(root, 9, now=tomorrow)
    problems = check(root).problems
    if any("nightquant store compact" in problem.remedy for problem in problems):
        compact(root)
        problems = check(root).problems
    found = [f"{problem.where} {problem.what}" for problem in problems]
    # What no command names, and so nobody would ever remove.
    found += [f"{entry.name} is left" for entry in root.list("") if entry.name.endswith(".tmp")]
    return found


def _append(root: StoreRoot, run: str, night: dt.date, **changes: str) -> None:
    rows = [baseline(run, night), measurement(run, night, **changes)]
    ResultsStore(root).append("measurements", rows, run, at(night))


def _append_new(root: StoreRoot, promise: Callable[[str], None]) -> None:
    _append(root, "new", _OPEN)
    promise("run new")
    ResultsStore(root).append("runs", [run_row("new", _OPEN)], "new", at(_OPEN, 4))
    refresh(root)


def _artifact(root: StoreRoot, kind: str, made_from: dict[str, str]) -> str:
    digest = artifact_digest(kind, made_from)
    with ArtifactStore(root).create(kind, digest, made_from) as folder:
        (folder / "inner").mkdir()
        (folder / "weights").write_bytes(b"w" * 100)
        (folder / "inner" / "words").write_text(json.dumps(made_from))
    return digest


def _publish_new(root: StoreRoot, promise: Callable[[str], None]) -> None:
    digest = artifact_digest("quantized", _NEW)
    if ArtifactStore(root).find("quantized", digest) is None:
        _artifact(root, "quantized", _NEW)
    promise(f"artifact {digest[:12]}")


def _promote_new(root: StoreRoot, promise: Callable[[str], None]) -> None:
    bundles, version = BundleStore(root), bundle_files.version(3)
    if version not in bundles.versions(WORKLOAD):
        with bundles.draft() as folder:
            bundle_files.fill(folder, b"3", 1)
            bundles.publish(folder, WORKLOAD, version)
    promise(f"bundle {version}")
    bundle_files.promote(bundles, version, WORKLOAD, by="a run", reason="it is faster")
    promise(f"switch to {version}")


def _compact(root: StoreRoot, promise: Callable[[str], None]) -> None:
    compact(root, now=LATER)


def _collect(root: StoreRoot, promise: Callable[[str], None]) -> None:
    collect(root, 9, now=time.time() + 2 * 24 * 3600)


def leave_something(folder: Path) -> None:
    """Put what killed writers leave into a local store, for the collection."""
    for name in (f"artifacts/.tmp/{'a' * 12}-{'b' * 32}/half", f"results/measurements/month=2026-02/.x-{'c' * 32}.tmp"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (0, 0))


OPERATIONS = (
    Operation("append", _append_new),
    Operation("compaction", _compact),
    Operation("publish", _publish_new),
    Operation("promotion", _promote_new),
    Operation("gc", _collect, LOOSE),
)
