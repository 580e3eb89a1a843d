"""The night of a flow run: the date that the run counts for, in the zone of its schedule."""

from __future__ import annotations

from datetime import date, datetime, tzinfo
from zoneinfo import ZoneInfo

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound


def night_of_this_run() -> date:
    """Return the night of the current flow run; outside a flow run, return today's date in the host's zone."""
    context = FlowRunContext.get()
    return night_of(context.flow_run) if context and context.flow_run else date.today()


def night_of(run: FlowRun) -> date:
    """Return the date for which a flow run was scheduled, even if the run starts after midnight or is a retry.

    If a schedule started the run, the date is in the schedule's zone. Otherwise, the date is in the host's zone.
    """
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
