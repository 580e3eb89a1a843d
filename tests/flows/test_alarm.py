from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from flows.findings import Findings, raise_alarm, summary_line
from flows.settings import Settings
from storage.results import FindingKind
from storage.results.regressions import NightComparison, Regression


def finding(kind: FindingKind = "slower") -> Regression:
    return Regression(
        workload="word-lm",
        recipe="int8",
        runtime="eager",
        fingerprint="f" * 64,
        kind=kind,
        metric="speedup",
        tonight=1.2,
        tonight_low=1.1,
        tonight_high=1.3,
        reference=1.5,
        change=-0.2,
        nights=10,
        since=date(2026, 11, 19),
        cause="environment",
        changed="environment: torch 2.14.0 → 2.15.0",
    )


def compared(*findings: Regression, **more: Any) -> Findings:
    numbers = tuple(f"word-lm int8/eager {index}" for index in range(8))
    return Findings(NightComparison(findings, numbers), **more)


def test_the_line_of_a_night_names_regressions_and_counts_the_rest():
    assert summary_line(compared()) == "no regression"
    found = compared(finding(), finding("improved"), finding("appeared"), absences=("no run on 2026-11-20",))
    line = summary_line(found)
    assert line.startswith("1 regression: word-lm int8/eager slower")
    assert line.endswith("1 improved; 1 appeared; no run on 2026-11-20")


def test_a_night_without_anything_to_compare_never_says_that_there_is_no_regression():
    nothing = NightComparison((), (), ("word-lm int8/eager speedup",))
    assert summary_line(Findings(nothing)) == "not comparable with earlier nights"
    partly = NightComparison((), ("word-lm int8/eager size_bytes",), ("word-lm int8/eager speedup",))
    assert summary_line(Findings(partly)) == "no regression; 1 of 2 numbers not comparable"


def test_a_regression_becomes_a_call(hook: tuple[str, list[dict[str, Any]]]) -> None:
    url, received = hook
    troubles = {"looking for what is missing": "the results cannot be read"}
    found = compared(finding(), finding("improved"), troubles=troubles)
    message, failed = raise_alarm(found, Settings(webhook_url=url))  # type: ignore[arg-type]
    assert message.startswith("1 regression: word-lm int8/eager slower")
    assert failed == {}
    assert [payload["event"] for payload in received] == ["nightquant.regression"]
    assert [told["since"] for told in received[0]["regressions"]] == ["2026-11-19"]
    assert received[0]["troubles"] == ["looking for what is missing failed: the results cannot be read"]


@pytest.mark.server
def test_a_notification_that_fails_is_named_and_stops_nothing(
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
    _, failed = raise_alarm(compared(finding()), settings)
    assert failed == {"webhook": "answered 500"}
    assert any("slower" in payload.get("body", "") for payload in received)


@pytest.mark.server
def test_a_problem_with_a_block_is_described_in_words(prefect_server: None) -> None:
    from prefect.blocks.system import Secret

    Secret(value="x").save("not-a-notification", overwrite=True)
    for slug, why in (
        ("secret/not-a-notification", 'The block "secret/not-a-notification" is neither a notification block nor'),
        ("secret/none", 'Prefect\'s server has no valid block "secret/none"'),
    ):
        _, failed = raise_alarm(compared(troubles={"x": "y"}), Settings(notification_block=slug))
        assert failed[f"notification block {slug}"].startswith(why)
