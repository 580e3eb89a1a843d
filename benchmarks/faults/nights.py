"""What a night does to a store at its end: it hands a workload over, raises its alarm, and records how it ended.

Both are the project's own functions, without what takes minutes (making a model) or a server (Prefect's tasks).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from flows.handover import hand_over
from storage.bundles import BundleStore
from storage.errors import StoreError
from storage.recovery import by_run, record_switch, unrecorded_switches
from storage.results import Row
from storage.results.layout import find_files, read_rows
from storage.results.tables import MEASUREMENTS, PROMOTIONS, RUNS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from storage.seal import MANIFEST, write_sums
from tasks.bundle.manifest import Provenance
from tasks.bundle.package import BundleRef, content_of
from tasks.job import Job
from tasks.refs import ArtifactRef, CandidateRef, CheckpointRef, DatasetRef
from tasks.results import CandidateResult, Evaluation, Incumbent, RunInfo, WorkloadResult
from tests.storage.results.rows import at, baseline, measurement
from tests.storage.test_manifest import GOOD
from tests.tasks.test_gate import workload

if TYPE_CHECKING:
    from flows.night import Night

ENDING = "ending"  # the run whose end `end_night` is
WORKLOAD = "handed-over"
_DAY = dt.datetime.now(dt.UTC).date()


def hand_over_tonight(root: StoreRoot, promise: Callable[[str], None]) -> None:
    """Do what a night does: record what dead ones did not, measure, hand over, and record what came of it."""
    for missing in unrecorded_switches(root):
        record_switch(root, missing)
    nights = [file for file in find_files(root, MEASUREMENTS).runs if file.run_id.startswith("night-")]
    info = RunInfo(run_id=f"night-{len(nights) + 1}", night=_DAY, profile="quick")
    rows: list[Row] = [
        make(info.run_id, _DAY, workload=WORKLOAD, runtime="torchscript", baseline="float/torchscript")
        for make in (baseline, measurement)
    ]
    ResultsStore(root).append("measurements", rows, info.run_id, at(_DAY), WORKLOAD)
    promise(f"run {info.run_id}")
    bundles = BundleStore(root)
    result = _result(bundles)
    outcome = hand_over(result, rows, info, bundles, package=partial(_package, bundles), renew=bundles.renew)
    if outcome.judgement is not None:
        decided = outcome.judgement.rows(
            workload=WORKLOAD,
            run_id=info.run_id,
            night=_DAY,
            decided_at=at(_DAY),
            bundle_version=outcome.version or None,
        )
        ResultsStore(root).append("promotions", decided, info.run_id, at(_DAY), WORKLOAD)
        promise(f"decision of {info.run_id}")


def _result(bundles: BundleStore) -> WorkloadResult:
    """A workload with one candidate, which replaces what is current."""
    job = Job(
        workload().model_copy(update={"name": WORKLOAD}),
        DatasetRef(kind="random", digest="a" * 64, splits={}),
        CheckpointRef(kind="checkpoint", digest="c" * 64, parameters=1),
    )
    digest = hashlib.sha256(b"candidate").hexdigest()
    made = CandidateRef(kind="candidate", digest=digest, recipe="dynamic", runtime="torchscript", size_bytes=400)
    evaluation = Evaluation(
        recipe="dynamic",
        runtime="torchscript",
        quality_metric="loss",
        quality=4.1,
        higher_is_better=False,
        metrics={},
        quality_batched=4.1,
        samples=1,
        outputs=ArtifactRef(kind="outputs", digest="e" * 64),
    )
    candidate = CandidateResult(recipe="dynamic", runtime="torchscript", built=made, evaluation=evaluation)
    pointer = bundles.pointer(WORKLOAD)
    current = Incumbent(version=pointer.version, outdated="it is of another checkpoint") if pointer else None
    return WorkloadResult(workload=job.workload, job=job, candidates=(candidate,), incumbent=current)


def _package(bundles: BundleStore, made: Provenance, replacing: str | None) -> BundleRef:
    """Do what `tasks.bundle.package` does to the store, with a bundle of a few bytes."""
    version = f"{made.night.isoformat()}-{content_of(made.job, made.candidate)}"
    if version not in bundles.versions(WORKLOAD):
        manifest = GOOD | {"version": version, "run_id": made.run_id, "workload": GOOD["workload"] | {"name": WORKLOAD}}
        with bundles.draft() as folder:
            (folder / MANIFEST).write_text(json.dumps(manifest))
            write_sums(folder)
            bundles.publish(folder, WORKLOAD, version)
    before = bundles.pointer(WORKLOAD)
    pointer = bundles.promote(
        WORKLOAD, version, by=by_run(made.run_id), reason=made.decision.reason, replacing=replacing
    )
    return BundleRef(
        workload=WORKLOAD,
        version=pointer.version,
        location=f"handoff/{WORKLOAD}/{pointer.version}",
        sha256sums=pointer.sha256sums,
        outcome="kept" if before is not None and before.version == pointer.version else "published",
    )


def end_night(root: StoreRoot, promise: Callable[[str], None]) -> None:
    """Look back, raise the alarm, write catalog and report, and record the run, as a night does at its end."""
    from flows import nightly
    from flows.alarm import Raised

    def raise_alarm(*arguments: object, **options: object) -> Raised:
        promise("alarm")
        return Raised("1 regression")

    steps = SimpleNamespace(record=nightly.steps.record.fn, report=nightly.steps.report.fn)
    with ExitStack() as stack:
        for name, stand_in in (("steps", steps), ("raise_alarm", raise_alarm), ("publish_leaderboard", _publish)):
            stack.enter_context(patch.object(nightly, name, stand_in))
        night = _night(root)
        nightly._alert(night)
        nightly._finish(night)
    promise(f"end of {ENDING}")


def _night(root: StoreRoot) -> Night:
    from flows.night import Night
    from flows.request import NightlyRequest
    from flows.settings import load_settings

    request = NightlyRequest(workloads=("word-lm",), store=root.url, profile="quick", night=_DAY)
    night = Night.begin(request, load_settings(store=root.url, profile="quick"), "")
    night.info = night.info.model_copy(update={"run_id": ENDING})
    night.store = root  # type: ignore[assignment]  # the one in which faults happen
    night.rows = [baseline(ENDING, _DAY), measurement(ENDING, _DAY)]
    return night


def _publish(*arguments: object) -> None:
    """Prefect's server is not there."""


def recorded(root: StoreRoot) -> Iterator[tuple[str, str]]:
    """What the results say of hand-overs and ends, and whether it is so; by name."""
    bundles = BundleStore(root)
    try:
        pointer = bundles.pointer(WORKLOAD)
        tables = [
            [row for entry in find_files(root, table).current for row in read_rows(root, entry.name).to_pylist()]
            for table in (PROMOTIONS, RUNS)
        ]
    except StoreError as error:
        yield "what was recorded", f"torn: {error.message}"
        return
    switches = {(switch.by, switch.version) for switch in pointer.history} if pointer else set()
    untrue = {
        row["run_id"]
        for row in tables[0]
        if row["decision"] == "promote"
        and not row["incumbent_stays"]
        and (by_run(row["run_id"]), row["bundle_version"]) not in switches
    }
    for run in {row["run_id"] for row in tables[0]}:
        yield f"decision of {run}", "torn: it did not happen" if run in untrue else "whole"
    for row in tables[1]:
        if row["run_id"] == ENDING:
            is_so = row["status"] == "failed" or root.exists(f"reports/{_DAY}.html")
            yield f"end of {ENDING}", "whole" if is_so else "torn: completed without a report"
