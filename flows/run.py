"""The beginning of a run: its request and settings, its id, and the night that it counts for."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Mapping
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
from flows.request import NightlyRequest
from flows.settings import Settings
from storage.root import StoreRoot
from tasks.environment.machine import versions
from tasks.run.record import RunRecord
from tasks.values.results import RunInfo
from tasks.workload.recipe import CandidateName

R = TypeVar("R")


@dataclass(kw_only=True)
class Run(RunRecord):
    """A run in progress."""

    request: NightlyRequest
    settings: Settings
    flow_run_id: str
    store: str  # absolute path or URL, because processes may have different working directories
    simultaneous: dict[str, Mapping[CandidateName, int]] = field(default_factory=dict)  # of searches, by workload
    report: str = ""  # URL of the report, once it is written
    stopped: str = "the run was stopped before it began"  # what a stopped run leaves undone

    @classmethod
    def begin(cls, request: NightlyRequest, settings: Settings, flow_run_id: str, attempt: int = 1) -> Run:
        """Validate the request against the workload files and choose the run's id."""
        now = datetime.now(UTC)
        night = request.night or night_of_this_run()
        # Use the last digits, because the first digits encode the time, and flow runs may start in the same
        # millisecond.
        run_id = f"{night:%Y%m%d}-{(flow_run_id or uuid.uuid4().hex).replace('-', '')[-12:]}"
        run_id += f"-{attempt}" if attempt > 1 else ""
        return cls(
            request=request,
            settings=settings,
            info=RunInfo(run_id=run_id, night=night, profile=settings.profile),
            workloads=request.load_workloads(),
            flow_run_id=flow_run_id,
            store=StoreRoot.of(settings.store).url,
            fixed={
                "started_at": now,
                "versions": json.dumps(versions("nightquant", "prefect", "pyarrow", "duckdb")),
                "git_commit": _git_commit(),
                "prefect_flow_run_id": flow_run_id or None,
            },
        )

    def attempt(self, what: str, do: Callable[[], R]) -> R | None:
        """Call `do` and return its result; if `do` fails, record the problem and return None."""
        outcome = attempt(what, do)
        if isinstance(outcome, Exception):
            self.fail(what, reason(outcome))
            return None
        return outcome


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
