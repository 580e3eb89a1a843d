"""State of one run: the request, the results so far, and the rows to record."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from flows.execution.signals import attempt, reason
from flows.handover import Handover
from flows.request import NightlyRequest, SearchResult
from flows.settings import Settings
from storage.humanize import plural
from storage.results import Row, RunStatus
from storage.results.baselines import Baseline
from storage.root import StoreRoot
from tasks.decide.gate import DOES_NOT_PAY, pays
from tasks.decide.rows import layer_rows, measurement_rows
from tasks.environment.machine import Evidence, versions
from tasks.values.results import RunInfo, WorkloadResult
from tasks.workload import Workload

R = TypeVar("R")


@dataclass
class Night:
    """A run in progress."""

    request: NightlyRequest
    settings: Settings
    info: RunInfo
    workloads: list[Workload]
    flow_run_id: str
    started_at: datetime
    store: str  # absolute path or URL, because processes may have different working directories
    searches: dict[str, SearchResult] = field(default_factory=dict)  # finished searches, keyed by workload
    results: list[WorkloadResult] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    promotions: dict[str, list[Row]] = field(default_factory=dict)  # decisions, keyed by workload
    bundles: dict[str, str] = field(default_factory=dict)  # each workload's current version after the decisions
    kept: list[str] = field(default_factory=list)  # workloads whose bundle stays current
    baselines: dict[str, Baseline] = field(default_factory=dict)  # those chosen by nightquant, keyed by workload
    problems: dict[str, str] = field(default_factory=dict)  # failure reasons, by action; excludes failed candidates
    remarks: list[str] = field(default_factory=list)  # additional sentences for the run's message
    report: str = ""  # URL of the report, once it is written
    stopped: str = "the run was stopped before it began"  # what a stopped run leaves undone

    @classmethod
    def begin(cls, request: NightlyRequest, settings: Settings, flow_run_id: str, attempt: int = 1) -> Night:
        """Validate the request against the workload files and choose the run's id."""
        now = datetime.now(UTC)
        night = request.night or night_of_this_run()
        # Use the last digits, because the first digits encode the time, and flow runs may start in the same
        # millisecond.
        run_id = f"{night:%Y%m%d}-{(flow_run_id or uuid.uuid4().hex).replace('-', '')[-12:]}"
        run_id += f"-{attempt}" if attempt > 1 else ""
        info = RunInfo(run_id=run_id, night=night, profile=settings.profile)
        store = StoreRoot.of(settings.store).url
        return cls(request, settings, info, request.load_workloads(), flow_run_id, now, store)

    def add(self, result: WorkloadResult) -> None:
        """Add the result of a finished workload."""
        self.results.append(result)
        chosen = self.baselines.get(result.workload.name)
        self.rows.extend(measurement_rows(self.info, result, datetime.now(UTC), chosen.reason if chosen else None))
        if result.dataset is not None:
            self.remarks += [f"{result.workload.name}: {note}" for note in result.dataset.notes]

    def attempt(self, what: str, do: Callable[[], R]) -> R | None:
        """Call `do` and return its result; if `do` fails, record the problem and return None."""
        outcome = attempt(what, do)
        if isinstance(outcome, Exception):
            self.fail(what, reason(outcome))
            return None
        return outcome

    def fail(self, what: str, why: str) -> None:
        """Record that the action `what` failed, so that the exit code becomes 1."""
        known = self.problems.get(what, "")
        if why not in known:
            self.problems[what] = f"{known}; {why}" if known else why

    def decide(self, workload: str, outcome: Handover) -> list[Row]:
        """Add the decisions about a workload's candidates and bundle; return the rows to record."""
        if outcome.version:
            self.bundles[workload] = outcome.version
        if outcome.problem:
            self.fail(f"publishing {workload}", outcome.problem)
        judgement = outcome.judgement
        if not pays(judgement.decisions):
            self.remarks.append(f"{workload}: {DOES_NOT_PAY}")
        if judgement.incumbent is not None and judgement.incumbent.stays:
            self.kept.append(workload)
        self.promotions[workload] = judgement.rows(
            workload=workload,
            run_id=self.info.run_id,
            night=self.info.night,
            decided_at=datetime.now(UTC),
            bundle_version=outcome.version or None,
        )
        return self.promotions[workload]

    def rows_of(self, workload: str) -> list[Row]:
        """Return a workload's rows of the ``measurements`` table."""
        return [row for row in self.rows if row["workload"] == workload]

    def measured(self, workload: str) -> dict[str, list[Row]]:
        """Return a workload's measured rows, keyed by table."""
        results = (result for result in self.results if result.workload.name == workload)
        layers = [row for result in results for row in layer_rows(self.info, result)]
        trials = self.searches[workload].rows(self.info) if workload in self.searches else []
        return {"measurements": self.rows_of(workload), "layers": layers, "trials": trials}

    def candidates(self) -> tuple[int, int]:
        """Count the measured and the failed candidates; ignore skipped candidates."""
        rows = [row for row in self.rows if row["setting"] != "incumbent"]
        status = [*{(row["workload"], row["recipe"], row["runtime"]): row["status"] for row in rows}.values()]
        return status.count("ok"), status.count("failed")

    def has_failures(self) -> bool:
        """Return whether any candidate, any bundle's publication, or any other action failed."""
        return bool(self.candidates()[1] or self.problems)

    def message(self) -> str:
        """Describe the run's outcome in one line."""
        good, failed = self.candidates()
        workloads = plural(len(self.workloads), "workload")
        parts = [f"{plural(good, 'candidate')} of {workloads} measured", f"{failed} failed"]
        parts += [f"{what} failed: {why}" for what, why in self.problems.items()]
        parts.append(f"{len(self.bundles.keys() - set(self.kept))} promoted")
        parts += [f"{len(self.kept)} kept"] if self.kept else []
        return ", ".join([*parts, *self.remarks])

    def run_row(self, status: RunStatus | None = None, message: str = "") -> Row:
        """Return the run's row for the ``runs`` table; the default status is the outcome so far."""
        status = status or ("failed" if self.has_failures() else "completed")
        benchmarks = [result.benchmark for result in self.results if result.benchmark is not None]
        evidence = [
            {"workload": result.workload, "before": result.evidence_before, "after": result.evidence_after}
            for result in benchmarks
        ]
        # Describe the host that ran the benchmarks; on a cluster, this host may differ from the flow's host.
        timed_on = Evidence.model_validate_json(benchmarks[0].evidence_before) if benchmarks else None
        good, failed = self.candidates()
        return {
            "run_id": self.info.run_id,
            "night": self.info.night,
            "started_at": self.started_at,
            "finished_at": datetime.now(UTC),
            "status": status,
            "profile": self.info.profile,
            "workloads": len(self.workloads),
            "candidates_ok": good,
            "candidates_failed": failed,
            "fingerprint": benchmarks[0].fingerprint if benchmarks else None,
            "host": timed_on.host if timed_on else None,
            "cpu": timed_on.machine.cpu if timed_on else None,
            "evidence": json.dumps(evidence),
            "versions": json.dumps(versions("nightquant", "prefect", "pyarrow", "duckdb")),
            "git_commit": _git_commit(),
            "prefect_flow_run_id": self.flow_run_id or None,
            "message": message or self.message(),
        }


def _git_commit() -> str | None:
    """Return the commit of nightquant's checkout, or None if nightquant does not run from its own checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def night_of_this_run() -> date:
    """Return the night of the current flow run; outside a flow run, return today's date in the host's zone."""
    context = FlowRunContext.get()
    return night_of(context.flow_run) if context and context.flow_run else date.today()


def night_of(run: FlowRun) -> date:
    """Return the date for which a flow run was scheduled, even if the run starts after midnight or is a retry."""
    if run.expected_start_time is None:
        return date.today()
    return datetime.fromtimestamp(run.expected_start_time.timestamp(), _zone(run)).date()


def _zone(run: FlowRun) -> tzinfo | None:
    """Return the zone of the schedule that started the run; return None for the host's zone."""
    creator = run.created_by
    if creator is None or creator.type != "SCHEDULE" or run.deployment_id is None:
        return None
    with get_client(sync_client=True) as client:
        try:
            schedules = client.read_deployment(run.deployment_id).schedules
        except ObjectNotFound:  # the deployment was deleted after the run began
            return None
    for schedule in schedules:
        # A deployment that is repeated keeps a schedule's slug, but not always its id.
        if schedule.id == creator.id or schedule.slug == creator.display_value:
            return ZoneInfo(getattr(schedule.schedule, "timezone", None) or "UTC")
    return None
