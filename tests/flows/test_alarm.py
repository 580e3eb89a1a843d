from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.alarm import gone_workloads, missed_nights, raise_alarm, summary_line
from flows.settings import Settings
from storage.results import FindingKind
from storage.results.catalog import refresh
from storage.results.regressions import NightComparison, Regression
from storage.results.writer import ResultsStore


def finding(kind: FindingKind = "slower", **changes: Any) -> Regression:
    values: dict[str, Any] = {
        "workload": "word-lm",
        "recipe": "int8",
        "runtime": "eager",
        "fingerprint": "f" * 64,
        "kind": kind,
        "metric": "speedup",
        "tonight": 1.2,
        "tonight_low": 1.1,
        "tonight_high": 1.3,
        "reference": 1.5,
        "change": -0.2,
        "nights": 10,
        "since": date(2026, 11, 19),
        "cause": "environment",
        "changed": "environment: torch 2.14.0 → 2.15.0",
    }
    return Regression(**(values | changes))


def compared(*findings: Regression, numbers: int = 8) -> NightComparison:
    return NightComparison(findings, tuple(f"word-lm int8/eager {index}" for index in range(numbers)))


GONE: dict[str, Any] = dict.fromkeys(
    ("tonight", "tonight_low", "tonight_high", "reference", "change", "since", "cause", "changed")
)


def test_a_finding_is_told_with_its_numbers_and_what_changed_with_it():
    assert finding().describe() == (
        "word-lm int8/eager slower: speedup 1.2 (1.1 to 1.3), was 1.5, -20.0% since 2026-11-19, "
        "with: environment: torch 2.14.0 → 2.15.0"
    )
    assert finding("vanished", **GONE).describe() == "word-lm int8/eager vanished"


def test_the_line_of_a_night_names_regressions_and_counts_the_rest():
    assert summary_line(compared()) == "no regression"
    found = compared(finding(), finding("improved"), finding("appeared", **GONE))
    line = summary_line(found, ["no run on 2026-11-20"])
    assert line.startswith("1 regression: word-lm int8/eager slower")
    assert line.endswith("1 improved; 1 appeared; no run on 2026-11-20")


def test_a_night_without_anything_to_compare_never_says_that_there_is_no_regression():
    assert summary_line(NightComparison((), (), ("word-lm int8/eager speedup",))) == (
        "not comparable with earlier nights"
    )
    partly = NightComparison((), ("word-lm int8/eager size_bytes",), ("word-lm int8/eager speedup",))
    assert summary_line(partly) == "no regression; 1 of 2 numbers not comparable"


def record(root: Path, night: date, workloads: list[str]) -> None:
    run_id = f"r{night:%Y%m%d}"
    now = datetime(night.year, night.month, night.day, 3, tzinfo=UTC)
    results = ResultsStore(root)
    common = {"run_id": run_id, "night": night, "profile": "quick"}
    rows = [
        common
        | {"workload": name, "recipe": "int8", "runtime": "eager", "setting": "primary", "attempt": 1, "threads": 1}
        | {"batch_size": 1, "status": "ok", "measured_at": now}
        for name in workloads
    ]
    results.append("measurements", rows, run_id, now)
    run = common | {"started_at": now, "finished_at": now, "status": "completed", "workloads": len(workloads)}
    results.append("runs", [run | {"candidates_ok": 1, "candidates_failed": 0}], run_id, now)
    refresh(root)


def test_missed_nights_and_workloads_that_are_gone_are_told(tmp_path: Path):
    first = date(2026, 11, 2)
    record(tmp_path, first, ["word-lm"])
    assert missed_nights(str(tmp_path), first) == gone_workloads(str(tmp_path), first) == []
    record(tmp_path, first + timedelta(days=1), ["lstm-demo", "word-lm"])
    record(tmp_path, first + timedelta(days=4), ["lstm-demo"])
    last = first + timedelta(days=4)
    assert gone_workloads(str(tmp_path), last) == ["word-lm was measured on 2026-11-03, but not tonight"]
    assert missed_nights(str(tmp_path), last) == ["no run on 2 nights, 2026-11-04 to 2026-11-05"]


def test_a_store_that_is_used_now_and_then_misses_no_night(tmp_path: Path):
    for day in (1, 8, 20):
        record(tmp_path, date(2026, 11, day), ["word-lm"])
    assert missed_nights(str(tmp_path), date(2026, 11, 20)) == []


@pytest.mark.server
def test_a_regression_becomes_artifacts_an_event_and_a_call(
    prefect_server: None, hook: tuple[str, list[dict[str, Any]]]
):
    from prefect import flow, get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
    from prefect.context import get_run_context
    from prefect.events.clients import AssertingEventsClient
    from prefect.events.worker import EventsWorker

    url, received = hook

    @flow
    def night() -> tuple[str, str]:
        context = get_run_context()
        run_id = str(context.flow_run.id)  # type: ignore[union-attr]
        found = compared(finding(), finding("improved"))
        return run_id, raise_alarm(found, Settings(webhook_url=url), run_id="r1")  # type: ignore[arg-type]

    EventsWorker.set_client_override(AssertingEventsClient)
    AssertingEventsClient.reset()
    try:
        run_id, message = night()
        events = [event for client in AssertingEventsClient.all for event in client.events]
    finally:
        EventsWorker.set_client_override(None)
        AssertingEventsClient.reset()
    mine = [event for event in events if event.event == "nightquant.regression"]
    assert len(mine) == 1
    assert mine[0].resource.id == "nightquant.workload.word-lm"
    assert (mine[0].payload["tonight"], mine[0].payload["run_id"]) == (1.2, "r1")
    assert any(related.id == f"prefect.flow-run.{run_id}" for related in mine[0].related)
    assert message.startswith("1 regression: word-lm int8/eager slower")
    assert "failed" not in message
    assert [payload["event"] for payload in received] == ["nightquant.regression"]
    assert [told["since"] for told in received[0]["regressions"]] == ["2026-11-19"]
    with get_client(sync_client=True) as client:
        chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))  # type: ignore[list-item]
        artifacts = client.read_artifacts(artifact_filter=chosen)
    assert sorted((artifact.key, artifact.type) for artifact in artifacts) == [
        ("regressions", "markdown"),
        ("regressions-table", "table"),
    ]


@pytest.mark.server
def test_a_notification_that_fails_is_told_and_stops_nothing(
    prefect_server: None, hook: tuple[str, list[dict[str, Any]]]
):
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    url, received = hook
    block = CustomWebhookNotificationBlock(
        name="on-call", url=f"{url}/good", json_data={"subject": "{{subject}}", "body": "{{body}}"}
    )
    block.save("on-call", overwrite=True)
    settings = Settings(
        notification_block="custom-webhook/on-call",
        webhook_url=f"{url}/broken",  # type: ignore[arg-type]
    )
    with pytest.warns(FutureWarning, match="outside of a flow"):
        message = raise_alarm(compared(finding()), settings)
    assert "webhook failed: answered 500" in message
    assert "notification block" not in message
    assert any("slower" in payload.get("body", "") for payload in received)
    nowhere = raise_alarm(compared(finding()), Settings(notification_block="slack-webhook/none"))
    assert "notification block slack-webhook/none failed" in nowhere


@pytest.mark.server
def test_a_quiet_night_makes_no_noise(prefect_server: None, hook: tuple[str, list[dict[str, Any]]]):
    url, received = hook
    assert raise_alarm(compared(), Settings(webhook_url=url)) == "no regression"  # type: ignore[arg-type]
    assert received == []
