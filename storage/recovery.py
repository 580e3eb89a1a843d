"""Record the switches and the ends of nights that died before they could do so themselves.

If a night dies between a switch and its record, the history in ``current.json`` has the switch, the bundle's manifest
the reason, and the measurements were recorded before. The next night records the missing rows from these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from storage.bundles import BundleStore
from storage.digest import canonical_json
from storage.errors import BundleError, StoreError
from storage.holder import Holder
from storage.pointer import Switch
from storage.results import Row
from storage.results.layout import find_files, part_name, read_rows
from storage.results.tables import MEASUREMENTS, PROMOTIONS, RUNS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from storage.seal import check_sums, read_manifest
from storage.trust import VERSION

_BY = re.compile(r"run ([A-Za-z0-9][A-Za-z0-9._-]*)")


def by_run(run_id: str) -> str:
    """The name under which a night's run enters its switches into a pointer's history."""
    return f"run {run_id}"


@dataclass(frozen=True)
class Unrecorded:
    """A night's switch to a bundle without a row in ``promotions``; `before` is the replaced version, "" if none."""

    workload: str
    run_id: str
    switch: Switch
    before: str

    def describe(self) -> str:
        """Which run handed over which bundle."""
        return f"run {self.run_id} handed over {self.workload}/{self.switch.version}"


def unrecorded_switches(place: StoreRoot | Path | str) -> list[Unrecorded]:
    """Return every night's switch that ``promotions`` lacks, unless the run's measurements are gone as well.

    A pointer that cannot be read is left out: everything that uses the workload's bundles reports it.
    """
    root = StoreRoot.of(place)
    # The pointers come first: a night that goes on meanwhile has recorded by then what they say.
    switches = list(_night_switches(BundleStore(root)))
    if not switches:
        return []
    measured, recorded = find_files(root, MEASUREMENTS).names, find_files(root, PROMOTIONS).names
    return [
        switch
        for switch in switches
        if switch.run_id in measured and part_name(switch.run_id, switch.workload) not in recorded
    ]


def _night_switches(bundles: BundleStore) -> Iterator[Unrecorded]:
    for workload in bundles.workloads():
        try:
            pointer = bundles.pointer(workload)
        except StoreError:
            continue
        before = ""
        for switch in pointer.history if pointer else ():
            match = _BY.fullmatch(switch.by)
            # Others may have written to the file, and the version becomes part of a path.
            if switch.action == "promote" and match and VERSION.fullmatch(switch.version):
                yield Unrecorded(workload, match[1], switch, before)
            before = switch.version


def record_switch(place: StoreRoot | Path | str, missing: Unrecorded) -> None:
    """Record the promoted candidate's row; what was decided on the others died with the night.

    Raises
    ------
    BundleError
        The bundle is not what was handed over.
    StoreError
        The store cannot be read or written.
    """
    root = StoreRoot.of(place)
    location = f"handoff/{missing.workload}/{missing.switch.version}"
    with BundleStore(root).opened(location) as folder:
        sums = check_sums(folder)
        if sums != missing.switch.sha256sums:
            raise BundleError(f"{root.uri(location)} is another bundle than was handed over.", hint="Do not use it.")
        manifest = read_manifest(folder, sums)
    entry = find_files(root, MEASUREMENTS).file_of(missing.run_id)
    if entry is None:
        raise StoreError(f"The measurements of run {missing.run_id} are gone.", hint="Restore them from a copy.")
    measured = [
        row
        for row in read_rows(root, entry.name).to_pylist()
        if row["run_id"] == missing.run_id and row["workload"] == missing.workload
    ]
    switch, digest, gate = missing.switch, manifest["sources"]["quantized"], manifest["gate"]
    packaged = {"recipe": manifest["recipe"]["name"], "runtime": manifest["model"]["runtime"]}
    # An earlier night may have packaged the content under a name that the recipe no longer has.
    found = (row for row in measured if row["artifact_digest"] == digest and row["setting"] == "primary")
    candidate = next(found, packaged)
    # The rules of an earlier night saw other numbers.
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
        "incumbent_reason": "replaced, as its history says; the night died before it recorded why"
        if missing.before
        else None,
    }
    ResultsStore(root).append("promotions", [row], missing.run_id, datetime.now(UTC), missing.workload)


def record_dead_run(place: StoreRoot | Path | str, dead: Holder) -> bool:
    """Record a run that measured and died before its row in ``runs`` was written; return whether there was one."""
    root = StoreRoot.of(place)
    entry = find_files(root, MEASUREMENTS).file_of(dead.run_id)
    if entry is None or dead.run_id in find_files(root, RUNS).names:
        return False
    measured = [row for row in read_rows(root, entry.name).to_pylist() if row["run_id"] == dead.run_id]
    if not measured:
        return False
    tonight = [row for row in measured if row["setting"] != "incumbent"]
    status = {(row["workload"], row["recipe"], row["runtime"]): row["status"] for row in tonight}
    row: Row = {
        "run_id": dead.run_id,
        "night": measured[0]["night"],
        "started_at": dead.since,
        # When the last thing was written that is known of it.
        "finished_at": datetime.fromtimestamp(entry.modified, UTC),
        "status": "failed",
        "profile": measured[0]["profile"],
        "workloads": len({row["workload"] for row in measured}),
        "candidates_ok": sum(found == "ok" for found in status.values()),
        "candidates_failed": sum(found == "failed" for found in status.values()),
        "fingerprint": next((row["fingerprint"] for row in measured if row["fingerprint"]), None),
        "message": f"the night died: {dead.describe()}; the next night recorded this",
    }
    ResultsStore(root).append("runs", [row], dead.run_id, datetime.now(UTC))
    return True
