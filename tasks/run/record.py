"""The record of a run: its results so far, and the rows, the message, the status and the exit code that follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from storage.humanize import plural
from storage.results import Row, RunStatus
from storage.results.history import Baseline
from tasks.decide.gate import DOES_NOT_PAY, pays
from tasks.decide.rows import layer_rows, measurement_rows
from tasks.environment.machine import Evidence
from tasks.run.publication import Publication
from tasks.values.results import RunInfo, WorkloadResult
from tasks.workload import Workload

GOOD, WORK_FAILED, REGRESSED = 0, 1, 3
Tables = dict[str, list[Row]]  # rows, keyed by table


@dataclass(kw_only=True)
class RunRecord:
    """What a run has found so far; ``fixed`` has the columns of the run's row that are known when the run begins."""

    info: RunInfo
    workloads: list[Workload]
    fixed: Row
    results: list[WorkloadResult] = field(default_factory=list)
    tables: dict[str, Tables] = field(default_factory=dict)  # rows to record, keyed by workload
    bundles: dict[str, str] = field(default_factory=dict)  # each workload's current version after the decisions
    kept: list[str] = field(default_factory=list)  # workloads whose bundle stays current
    baselines: dict[str, Baseline] = field(default_factory=dict)  # those chosen by nightquant, keyed by workload
    problems: dict[str, str] = field(default_factory=dict)  # failure reasons, by action; excludes failed candidates
    remarks: list[str] = field(default_factory=list)  # additional sentences for the run's message

    def freeze(self, baselines: Mapping[str, Baseline]) -> None:
        """Give workloads whose baseline is the fastest float candidate the one that follows from earlier nights."""
        for name, baseline in baselines.items():
            if baseline.replaces:
                self.remarks.append(f"{name}: the baseline is now {baseline.name}, because {baseline.reason}")
        self.baselines |= baselines
        self.workloads = [
            each.with_baseline(baselines[each.name].name) if each.name in baselines else each for each in self.workloads
        ]

    def choose(self, workload: str, baseline: Baseline) -> None:
        """Record the baseline that this run chose for a workload."""
        self.baselines[workload] = baseline
        self.remarks.append(f"{workload}: the baseline is {baseline.name}, because {baseline.reason}")

    def add(self, result: WorkloadResult, now: datetime) -> Tables:
        """Add the result of a finished workload; return its rows."""
        name, chosen = result.workload.name, self.baselines.get(result.workload.name)
        self.results.append(result)
        if result.dataset is not None:
            self.remarks += [f"{name}: {note}" for note in result.dataset.notes]
        tables = self.tables.setdefault(name, {})
        tables["measurements"] = measurement_rows(self.info, result, now, chosen.reason if chosen else None)
        tables["layers"] = layer_rows(self.info, result)
        return tables

    def fail(self, what: str, why: str) -> None:
        """Record that the action `what` failed, so that the exit code becomes 1."""
        known = self.problems.get(what, "")
        if why not in known:
            self.problems[what] = f"{known}; {why}" if known else why

    def publish(self, workload: str, publication: Publication, now: datetime) -> Tables:
        """Add the decisions about a workload's candidates and bundle; return their rows."""
        if publication.version:
            self.bundles[workload] = publication.version
        if publication.problem:
            self.fail(f"publishing {workload}", publication.problem)
        judgement = publication.judgement
        if not pays(judgement.decisions):
            self.remarks.append(f"{workload}: {DOES_NOT_PAY}")
        if judgement.current is not None and judgement.current.stays:
            self.kept.append(workload)
        rows = judgement.rows(self.info, workload, now, publication.version or None)
        self.tables.setdefault(workload, {})["promotions"] = rows
        return {"promotions": rows}

    def candidates(self) -> tuple[int, int]:
        """Count the measured and the failed candidates; ignore skipped candidates."""
        rows = [row for tables in self.tables.values() for row in tables.get("measurements", ())]
        rows = [row for row in rows if row["setting"] != "current"]
        status = [*{(row["workload"], row["recipe"], row["runtime"]): row["status"] for row in rows}.values()]
        return status.count("ok"), status.count("failed")

    def exit_code(self, regressed: bool = False) -> int:
        """Return 1 if any candidate, any bundle's publication or any other action failed, or 3 for a regression."""
        return WORK_FAILED if self.candidates()[1] or self.problems else REGRESSED if regressed else GOOD

    def message(self) -> str:
        """Describe the run in one line, with all remarks."""
        return "; ".join([self.outcome(), *self.remarks])

    def outcome(self) -> str:
        """Count what was measured, what failed and what was promoted, in one line."""
        good, failed = self.candidates()
        workloads = plural(len(self.workloads), "workload")
        parts = [f"{plural(good, 'candidate')} of {workloads} measured", f"{failed} failed"]
        parts += [f"{what} failed: {why}" for what, why in self.problems.items()]
        parts.append(f"{len(self.bundles.keys() - set(self.kept))} promoted")
        parts += [f"{len(self.kept)} kept"] if self.kept else []
        return ", ".join(parts)

    def ended_by(self, stop: BaseException) -> tuple[RunStatus, str]:
        """Return the status and the message of a run that an error or an interruption ended."""
        measured = {result.workload.name for result in self.results}
        missing = [workload.name for workload in self.workloads if workload.name not in measured]
        failed = isinstance(stop, Exception)
        why = (str(stop) if failed else "") or type(stop).__name__
        message = f"stopped ({why}); not measured: {', '.join(missing) or 'nothing'}"
        return "failed" if failed else "cancelled", message

    def row(self, now: datetime, status: RunStatus | None = None, message: str = "") -> Row:
        """Return the run's row for the ``runs`` table; the default status is the outcome so far."""
        timed = {result.workload.name: result.benchmark for result in self.results if result.benchmark is not None}
        evidence = [
            {"workload": name, "before": benchmark.evidence_before, "after": benchmark.evidence_after}
            for name, benchmark in timed.items()
        ]
        benchmarks = list(timed.values())
        # Describe the host that ran the benchmarks; on a cluster, this host may differ from the flow's host.
        timed_on = Evidence.model_validate_json(benchmarks[0].evidence_before) if benchmarks else None
        good, failed = self.candidates()
        return {
            **self.info.model_dump(),
            **self.fixed,
            "finished_at": now,
            "status": status or ("completed" if self.exit_code() == GOOD else "failed"),
            "workloads": len(self.workloads),
            "candidates_ok": good,
            "candidates_failed": failed,
            "fingerprint": benchmarks[0].fingerprint if benchmarks else None,
            "host": timed_on.host if timed_on else None,
            "cpu": timed_on.machine.cpu if timed_on else None,
            "evidence": json.dumps(evidence),
            "message": message or self.message(),
        }
