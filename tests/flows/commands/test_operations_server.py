"""Who is told of nights that end badly or do not begin: a real server, its automations, and a receiver on loopback."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.settings import Settings
from storage.errors import ConfigurationError
from tests.flows.site import Site, postgresql

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

Hook = tuple[str, list[dict[str, Any]]]
TEN_MINUTES = timedelta(minutes=10)


@pytest.mark.usefixtures("prefect_server")
def test_installing_repairs_only_missing_disabled_outdated_or_duplicate_entries() -> None:
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    from flows.commands.operations import Automations, kinds

    first, second = (Settings(webhook_url=f"http://127.0.0.1:9/{name}") for name in ("first", "second"))  # type: ignore[arg-type]
    told = kinds(TEN_MINUTES)
    with get_client(sync_client=True) as client:
        automations = Automations(client, first, told)
        assert set(automations.states().values()) == {"missing"}
        automations.install()
        assert set(automations.states().values()) == {"installed"}
        made = {each.name: each.id for each in client.read_automations()}

        client.pause_automation(made["nightquant: failed"])
        client.delete_automation(made["nightquant: late"])
        doubled = client.read_automation(made["nightquant: crashed"])
        assert doubled is not None
        client.create_automation(AutomationCore.model_validate(doubled.model_dump()))
        longer = Automations(client, first, kinds(TEN_MINUTES * 2))
        assert longer.states() == {
            "failed": "disabled",
            "crashed": "outdated",
            "cancelled": "installed",
            "late": "missing",
            "never-started": "outdated",
            "silent": "outdated",
        }
        longer.install()
        assert set(longer.states().values()) == {"installed"}
        assert len(client.read_automations()) == len(made)

        moved = Automations(client, second, told)
        assert set(moved.states().values()) == {"outdated"}
        moved.install()
        assert set(moved.states().values()) == {"installed"}
        for each in client.read_automations():
            client.delete_automation(each.id)


@pytest.mark.usefixtures("prefect_server")
def test_the_notification_block_must_be_named_and_exist() -> None:
    from prefect.client.orchestration import get_client

    from flows.commands.operations import Automations, kinds

    told = kinds(TEN_MINUTES)
    with get_client(sync_client=True) as client:
        with pytest.raises(ConfigurationError, match="NIGHTQUANT_WEBHOOK_URL"):
            Automations(client, Settings(), told)
        with pytest.raises(ConfigurationError, match="slack-webhook/none"):
            Automations(client, Settings(notification_block="slack-webhook/none"), told).install()
        assert client.read_automations() == []


class Nights:
    """Flow runs on a server, of a deployment or of a command, in the states that a worker would give them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._flow = self._made("/flows/", {"name": "nightly-quantization"})
        self._deployment = self._made("/deployments/", {"name": "nightly", "flow_id": self._flow})

    def _made(self, path: str, body: dict[str, Any]) -> str:
        return str(self._site.asked(path, body)["id"])

    def scheduled(self, *, ago: float = 0.0) -> str:
        at = datetime.now(UTC) - timedelta(seconds=ago)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": at.isoformat()}}
        return self._made(f"/deployments/{self._deployment}/create_flow_run", {"state": state})

    def by_hand(self) -> str:
        return self._made("/flow_runs/", {"flow_id": self._flow, "state": {"type": "PENDING"}})

    def become(self, run: str, *states: str) -> str:
        for state in states:
            kind, _, message = state.partition(": ")
            name = None if kind.isupper() else kind
            wanted = {"type": "FAILED" if name else kind, "name": name, "message": message or None}
            assert self._site.asked(f"/flow_runs/{run}/set_state", {"state": wanted, "force": True})
        return run

    def beat(self, run: str) -> str:
        """What the flow's process says every three minutes."""
        made = {"flow": (self._flow, "nightly-quantization"), "deployment": (self._deployment, "nightly")}
        related = [
            {
                "prefect.resource.id": f"prefect.{role}.{id_}",
                "prefect.resource.role": role,
                "prefect.resource.name": name,
            }
            for role, (id_, name) in made.items()
        ]
        event = {
            "id": str(uuid.uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": "prefect.flow-run.heartbeat",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.name": "a night"},
            "related": related,
        }
        self._site.asked("/events", [event])
        return run


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    # SQLite refuses one of two writers at once, and the server then loses what it was about to tell.
    with postgresql() as database:
        site = Site(tmp_path, database)
        site.start_server()
        yield site


SHORT = """
import datetime
from flows.cli import main
from flows.commands import operations
operations.LIMIT = datetime.timedelta(seconds=10)  # Prefect's least
main()
"""


def operations(site: Site, *arguments: str) -> tuple[int, str]:
    command = site.command("operations", *arguments, program=(sys.executable, "-c", SHORT))
    output, _ = command.process.communicate(timeout=120)
    return command.process.returncode, output


@pytest.mark.long
def test_each_kind_of_failed_night_is_reported_once(site: Site, hook: Hook) -> None:
    url, received = hook
    site.variables["NIGHTQUANT_WEBHOOK_URL"] = url

    code, said = operations(site, "install")
    assert (code, said.count("installed")) == (0, 6), said
    assert operations(site, "check")[0] == 0

    nights = Nights(site)
    good = nights.become(nights.scheduled(), "PENDING", "RUNNING")
    nights.beat(good)
    wrong = {
        "failed": nights.become(nights.scheduled(), "PENDING", "RUNNING", 'FAILED: 1 failed, "so"\nand'),
        "crashed": nights.become(nights.scheduled(), "PENDING", "RUNNING", "CRASHED: killed"),
        "cancelled": nights.become(nights.scheduled(), "PENDING", "RUNNING", "CANCELLED: another night"),
        "late": nights.scheduled(ago=60),
        "never-started": nights.become(nights.scheduled(), "PENDING"),
        "silent": nights.beat(nights.become(nights.scheduled(), "PENDING", "RUNNING")),
    }
    # Told by the night itself, and by whoever began it.
    nights.become(nights.scheduled(), "PENDING", "RUNNING", "Regressed: 1 regression")
    nights.become(nights.by_hand(), "RUNNING", "FAILED: by hand")
    nights.become(good, "COMPLETED")

    deadline = time.monotonic() + 90
    while len(received) < len(wrong) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert sorted(each["kind"] for each in received) == sorted(wrong)
    told = {each["kind"]: each for each in received}
    assert {kind: each["flow_run"] for kind, each in told.items()} == {
        kind: f"prefect.flow-run.{run}" for kind, run in wrong.items()
    }
    assert len(received) == len(wrong)
    assert {each["event"] for each in received} == {"nightquant.night"}
    assert told["failed"]["message"].endswith(' failed: 1 failed, "so"\nand')
    assert "no worker started it within 0.167 min" in told["late"]["message"]
