"""Record the switches and rows that a run could not record before it died.

If a run dies after a switch, ``current.json`` already contains the switch. The bundle's manifest contains the recipe
and the gate's rules, and the store contains the measurements. The next run derives the missing rows from
``current.json``, the manifest and the measurements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.bundles import BundleStore
from storage.digest import canonical_json
from storage.errors import BundleError, StoreError
from storage.holder import Holder
from storage.pointer import VERSION, Switch
from storage.results import Row
from storage.results.layout import find_files, part_name, read_rows
from storage.results.tables import MEASUREMENTS, PROMOTIONS, RUNS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from storage.seal import check_sums, read_manifest

_BY = re.compile(r"run ([A-Za-z0-9][A-Za-z0-9._-]*)")


def by_run(run_id: str) -> str:
    """Return the ``by`` value that identifies a run in a pointer's history."""
    return f"run {run_id}"


@dataclass(frozen=True)
class Unrecorded:
    """A run's unrecorded switch; `before` is the replaced version, or ``""`` for the first switch."""

    workload: str
    run_id: str
    switch: Switch
    before: str

    def describe(self) -> str:
        """Describe the run and the published bundle for a message."""
        return f"run {self.run_id} published {self.workload}/{self.switch.version}"


def unrecorded_switches(place: StoreRoot | Path | str) -> list[Unrecorded]:
    """Return the switches that runs made but ``promotions`` lacks; omit runs without measurements.

    An unreadable pointer is skipped, because other commands report the problem.
    """
    root = StoreRoot.of(place)
    # Read the pointers before the results, so that a run in progress has time to record its switches.
    switches = list(_run_switches(BundleStore(root)))
    if not switches:
        return []
    measured, recorded = find_files(root, MEASUREMENTS).names, find_files(root, PROMOTIONS).names
    return [
        switch
        for switch in switches
        if (part := part_name(switch.run_id, switch.workload)) in measured and part not in recorded
    ]


def _run_switches(bundles: BundleStore) -> Iterator[Unrecorded]:
    for workload in bundles.workloads():
        try:
            pointer = bundles.pointer(workload)
        except StoreError:
            continue
        before = ""
        for switch in pointer.history if pointer else ():
            match = _BY.fullmatch(switch.by)
            # Check the version, because the file is untrusted and the version becomes part of a path.
            if switch.action == "promote" and match and VERSION.fullmatch(switch.version):
                yield Unrecorded(workload, match[1], switch, before)
            before = switch.version


def record_switch(place: StoreRoot | Path | str, missing: Unrecorded) -> None:
    """Record the promoted candidate's row; the decisions about other candidates are lost.

    Raises
    ------
    BundleError
        The bundle has changed since it was promoted.
    StoreError
        The store cannot be read or written.
    """
    root = StoreRoot.of(place)
    location = f"handoff/{missing.workload}/{missing.switch.version}"
    with BundleStore(root).opened(location) as folder:
        sums = check_sums(folder)
        if sums != missing.switch.sha256sums:
            raise BundleError(
                f"The bundle {root.uri(location)} has changed since it was promoted.",
                hint="Do not use the bundle; restore it from a backup.",
            )
        manifest = read_manifest(folder, sums)
    rows, _ = _measured(root, missing.run_id)
    if not rows:
        raise StoreError(
            f"The measurements of run {missing.run_id} are missing.", hint="Restore the results from a backup."
        )
    measured = [row for row in rows if row["workload"] == missing.workload]
    switch, digest, gate = missing.switch, manifest["sources"]["quantized"], manifest["gate"]
    packaged = {"recipe": manifest["recipe"]["name"], "runtime": manifest["model"]["runtime"]}
    # An earlier run may have packaged the same candidate under a different recipe name.
    matching = (row for row in measured if row["artifact_digest"] == digest and row["setting"] == "primary")
    candidate = next(matching, packaged)
    # If an earlier run packaged the bundle, the rules in the manifest contain the earlier run's measurements.
    rules = gate["rules"] if manifest["run_id"] == missing.run_id else []
    row: Row = {
        "run_id": missing.run_id,
        "night": measured[0]["night"] if measured else switch.at.date(),
        "workload": missing.workload,
        "recipe": candidate["recipe"],
        "runtime": candidate["runtime"],
        "decision": "promote",
        "decided_at": switch.at,
        "objective": gate["objective"],
        "rules": canonical_json(rules),
        "reason": switch.reason,
        "bundle_version": switch.version,
        "artifact_digest": digest,
        "incumbent_version": missing.before or None,
        "incumbent_stays": False if missing.before else None,
        "incumbent_reason": "replaced according to current.json; the run died before it recorded the reason"
        if missing.before
        else None,
    }
    ResultsStore(root).append("promotions", [row], missing.run_id, datetime.now(UTC), missing.workload)


def record_dead_run(place: StoreRoot | Path | str, dead: Holder) -> bool:
    """Add a row to ``runs`` for a run that measured candidates and then died; return whether a row was added."""
    root = StoreRoot.of(place)
    measured, published = _measured(root, dead.run_id)
    if not measured or dead.run_id in find_files(root, RUNS).names:
        return False
    tonight = [row for row in measured if row["setting"] != "incumbent"]
    status = {(row["workload"], row["recipe"], row["runtime"]): row["status"] for row in tonight}
    row: Row = {
        "run_id": dead.run_id,
        "night": measured[0]["night"],
        "started_at": dead.since,
        # The run's end is unknown, so use the time when the run last published measurements.
        "finished_at": datetime.fromtimestamp(published, UTC),
        "status": "failed",
        "profile": measured[0]["profile"],
        "workloads": len({row["workload"] for row in measured}),
        "candidates_ok": sum(outcome == "ok" for outcome in status.values()),
        "candidates_failed": sum(outcome == "failed" for outcome in status.values()),
        "fingerprint": next((row["fingerprint"] for row in measured if row["fingerprint"]), None),
        "message": f"the run died: {dead.describe()}; the next run recorded this row",
    }
    ResultsStore(root).append("runs", [row], dead.run_id, datetime.now(UTC))
    return True


def _measured(root: StoreRoot, run_id: str) -> tuple[list[dict[str, Any]], float]:
    """Return a run's rows of ``measurements``, and the POSIX time at which the last of these rows was published."""
    entries = find_files(root, MEASUREMENTS).files_of(run_id)
    rows = [
        row
        for entry in entries
        for row in read_rows(root, MEASUREMENTS, entry.name).to_pylist()
        if row["run_id"] == run_id
    ]
    return rows, max((entry.modified for entry in entries), default=0.0)
