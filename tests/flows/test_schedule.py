"""The night of a run that a schedule started: Prefect's own server makes the runs, in the weeks of the time change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture(autouse=True)
def zone_of_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose date is never the date in Berlin at half past one in the morning."""
    monkeypatch.setenv("TZ", "Etc/GMT+12")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Deployment:
    """A deployment of a flow, with schedules that a test chooses."""

    def __init__(self, client: Any, *schedules: dict[str, Any], name: str = "") -> None:
        from prefect import flow

        self.client, self.name = client, name or uuid4().hex
        flow_id = client.create_flow(flow(lambda: None, name="nightly-quantization"))
        body = {"name": self.name, "flow_id": str(flow_id), "schedules": schedules}
        answer = client._client.post("/deployments/", json=body)
        answer.raise_for_status()
        self.id = UUID(answer.json()["id"])

    def runs(self, since: datetime, days: int) -> list[Any]:
        """Let the server schedule runs for some days, the past included; in the order of their times."""
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

        until = since + timedelta(days)
        times = {"start_time": since.isoformat(), "end_time": until.isoformat()}
        self.client._client.post(f"/deployments/{self.id}/schedule", json=times | {"min_runs": 50}).raise_for_status()
        chosen = DeploymentFilter(id=DeploymentFilterId(any_=[self.id]))
        found = self.client.read_flow_runs(deployment_filter=chosen)
        wanted = (run for run in found if since <= run.expected_start_time <= until)
        return sorted(wanted, key=lambda run: run.expected_start_time)


def cron(line: str, timezone: str | None, slug: str) -> dict[str, Any]:
    return {"schedule": {"cron": line, "timezone": timezone}, "slug": slug, "active": True}


@pytest.fixture
def client() -> Iterator[Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield client


def test_each_date_of_a_schedule_has_one_night_when_the_clocks_change(client: Any) -> None:
    from flows.run import night_of

    deployment = Deployment(client, cron("30 1 * * *", "Europe/Berlin", "nightly"))
    for first in (date(2026, 3, 28), date(2026, 10, 24)):
        runs = deployment.runs(datetime(first.year, first.month, first.day - 1, 12, tzinfo=UTC), 4)
        assert [night_of(run) for run in runs] == [first + timedelta(day) for day in range(4)]


def test_a_run_has_the_zone_of_its_own_schedule_even_if_that_is_deployed_again(client: Any) -> None:
    from prefect.states import Scheduled

    from flows.run import night_of, night_of_this_run

    east, none = cron("30 0 * * *", "Pacific/Kiritimati", "east"), cron("0 11 * * *", None, "none")
    deployment = Deployment(client, east, none)
    runs = deployment.runs(datetime(2026, 3, 1, tzinfo=UTC), 1)
    again = Deployment(client, east, none, name=deployment.name)
    assert client.read_deployment(again.id).schedules[0].id != runs[0].created_by.id
    # Half past midnight of March 2 is half past ten of March 1 in UTC.
    assert [(run.created_by.display_value, night_of(run)) for run in runs] == [
        ("east", date(2026, 3, 2)),
        ("none", date(2026, 3, 1)),
    ]
    by_hand = client.create_flow_run_from_deployment(
        deployment.id, state=Scheduled(scheduled_time=datetime(2026, 3, 28, 0, 30, tzinfo=UTC))
    )
    assert night_of(by_hand) == date(2026, 3, 27)  # the host's date
    client.delete_deployment(again.id)
    assert night_of(runs[0]) == date(2026, 2, 28)  # only the host's zone is left
    assert night_of_this_run() == (datetime.now(UTC) - timedelta(hours=12)).date()
