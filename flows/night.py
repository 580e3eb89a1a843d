"""One run's bookkeeping: what it was asked, what it found so far, and the rows that say so."""

from __future__ import annotations

import json
import platform
import subprocess
import tomllib
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

from flows.request import NightlyRequest
from flows.settings import Settings
from tasks.gate import GateDecision
from tasks.machine import Evidence
from tasks.record import Failure, Row, RunInfo, WorkloadResult, measurement_rows
from tasks.refs import Frozen
from tasks.workload import Workload

_LIBRARIES = ("nightquant", "torch", "torchvision", "prefect", "pyarrow", "duckdb", "numpy")

GOOD, WORK_FAILED, REGRESSED = 0, 1, 3


class NightSummary(Frozen):
    """What a run came to: the flow run's result, and what the command line prints.

    ``exit_code`` is 1 where some work failed, 3 where a regression was found and nothing failed (what failed is to be
    mended first: a regression may only be its shadow), 0 otherwise. ``busy_s`` is the wall time in which a stage ran.
    """

    run_id: str
    night: date
    store: str
    message: str
    exit_code: int
    candidates_ok: int
    candidates_failed: int
    bundles: tuple[str, ...]
    findings: tuple[str, ...]
    wall_s: float
    busy_s: float
    benchmark_wall_s: float
    benchmark_timed_s: float


@dataclass
class Night:
    """A run in progress."""

    info: RunInfo
    workloads: list[Workload]
    flow_run_id: str
    started_at: datetime
    results: list[WorkloadResult] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    decisions: dict[str, tuple[GateDecision, ...]] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    packaging: dict[str, Failure] = field(default_factory=dict)
    withdrawn: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    promotions: list[Row] = field(default_factory=list)
    recorded: bool = False
    handed_over: bool = False
    alarm: str = ""

    @classmethod
    def begin(cls, request: NightlyRequest, settings: Settings, flow_run_id: str, attempt: int = 1) -> Night:
        """Validate the request against the workload files and name the run.

        The run's id follows from Prefect's flow run where there is one, so that a writer that is called again finds its
        file instead of doubling its rows. A flow run that is retried measures anew: that is another run.
        """
        now = datetime.now(UTC)
        night = request.night or now.astimezone().date()
        # The last digits: the first ones are the time, and a scheduler makes several flow runs in a millisecond.
        run_id = f"{night:%Y%m%d}-{(flow_run_id or uuid.uuid4().hex).replace('-', '')[-12:]}"
        run_id += f"-{attempt}" if attempt > 1 else ""
        info = RunInfo(run_id=run_id, night=night, profile=settings.profile)
        return cls(info, request.load_workloads(), flow_run_id, now)

    def add(self, result: WorkloadResult) -> None:
        """Take in a workload that is through."""
        self.results.append(result)
        self.rows.extend(measurement_rows(self.info, result, datetime.now(UTC)))

    def rows_of(self, workload: str) -> list[Row]:
        """The measurement rows of one workload."""
        return [row for row in self.rows if row["workload"] == workload]

    def outcomes(self) -> dict[tuple[str, str, str], str]:
        """What the gate decided, by (workload, recipe, runtime)."""
        return {
            (workload, one.recipe, one.runtime): one.decision
            for workload, decisions in self.decisions.items()
            for one in decisions
        }

    def candidates(self) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
        """Good and failed candidates as (workload, recipe, runtime)."""
        keys = {(row["workload"], row["recipe"], row["runtime"]): row["status"] for row in self.rows}
        failed = {key for key, status in keys.items() if status == "failed"}
        return set(keys) - failed, failed

    def packaging_failed(self, workload: str, decision: GateDecision, failure: Failure) -> None:
        """Take back a promotion whose bundle could not be made."""
        self.packaging[workload] = failure
        reason = f"promoted by the gate, but its bundle could not be made: {failure.error}"
        refused = decision.model_copy(update={"decision": "reject", "reason": reason})
        self.decisions[workload] = tuple(refused if one == decision else one for one in self.decisions[workload])

    def problems(self) -> int:
        """How many candidates and bundles failed."""
        return len(self.candidates()[1]) + len(self.packaging)

    def message(self) -> str:
        """The run's outcome in one line."""
        good, failed = self.candidates()
        parts = [f"{len(good)} candidates of {len(self.workloads)} workloads measured", f"{len(failed)} failed"]
        parts += [f"no bundle for {workload}: {failure.error}" for workload, failure in self.packaging.items()]
        parts += [f"{len(self.bundles)} promoted"]
        # Somebody rolled back from this very content: a night does not overrule that.
        parts += [f"{workload}'s winner was rolled back before and stays withdrawn" for workload in self.withdrawn]
        return ", ".join([*parts, *self.remarks])

    def run_row(self, status: str, message: str) -> Row:
        """The run's own row of ``runs``."""
        benchmarks = [one for result in self.results for one in result.benchmarks]
        # Of the host that benchmarked: on a cluster it is another one than this.
        timed_on = Evidence.model_validate_json(benchmarks[0].evidence_before) if benchmarks else None
        evidence = [
            {
                "workload": one.workload,
                "attempt": one.attempt,
                "before": one.evidence_before,
                "after": one.evidence_after,
            }
            for one in benchmarks
        ]
        good, failed = self.candidates()
        return {
            "run_id": self.info.run_id,
            "night": self.info.night,
            "started_at": self.started_at,
            "finished_at": datetime.now(UTC),
            "status": status,
            "profile": self.info.profile,
            "workloads": len(self.workloads),
            "candidates_ok": len(good),
            "candidates_failed": len(failed),
            "fingerprint": benchmarks[0].fingerprint if benchmarks else None,
            "host": timed_on.host if timed_on else None,
            "cpu": timed_on.machine.cpu if timed_on else None,
            "evidence": json.dumps(evidence),
            "versions": json.dumps(
                {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}
            ),
            "git_commit": _git_commit(),
            "prefect_flow_run_id": self.flow_run_id or None,
            "message": message,
        }


def _git_commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None if it is installed elsewhere.

    A virtual environment may lie in somebody else's repository, whose commit says nothing about this code.
    """
    root = Path(__file__).resolve().parents[1]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
        asked = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]
        folder, commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError):  # no such file, no git, no repository
        return None
    return commit if project == "nightquant" and Path(folder) == root else None
