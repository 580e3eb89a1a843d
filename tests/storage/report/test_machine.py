from __future__ import annotations

from typing import Any

import pytest

from storage.report.machine import Condition, conditions_of
from tests.storage.report.nights import evidence


def row(**changes: Any) -> dict[str, Any]:
    return {"decision": "pass", "aa_low": 0.99, "aa_high": 1.02} | changes


def of_busy(evidence: str | None, *rows: dict[str, Any]) -> Condition:
    return conditions_of([{"evidence": evidence}], {"busy": rows})[0]


def test_what_was_recorded_becomes_shares_of_the_benchmarks_time() -> None:
    found = of_busy(evidence(waiting=0.31, stolen=0.04), row(), row(decision="hold", aa_low=0.8))
    assert (found.load, found.processors, found.undecided) == (2.4, 2, 1)
    assert (found.waiting, found.stolen, found.resolution) == pytest.approx((0.31, 0.04, 0.2))
    assert len(found.troubles) == 3
    assert found.troubles[1] == "tasks waited for a processor in 31% of the time"


@pytest.mark.slow
def test_a_quiet_machine_is_no_trouble() -> None:
    found = of_busy(evidence(waiting=0.05, stolen=0.001), row())
    assert (found.troubles, found.is_known) == ([], True)


def test_a_coarse_benchmark_is_trouble_whatever_the_machine_says() -> None:
    found = of_busy(evidence(waiting=0, stolen=0), row(aa_high=1.31))
    assert found.troubles == ["the same model against itself was up to 31% off"]


@pytest.mark.parametrize("recorded", [None, "[]"])
def test_what_was_not_recorded_is_no_trouble(recorded: str | None) -> None:
    found = of_busy(recorded, row(aa_low=None, aa_high=None))
    assert found == Condition("busy")
    assert not found.is_known
    assert not found.troubles


@pytest.mark.slow
def test_of_several_runs_the_last_ones_evidence_counts() -> None:
    runs = [{"evidence": evidence(waiting=0.9)}, {"evidence": evidence(waiting=0.1)}]
    assert conditions_of(runs, {"busy": [row()]})[0].waiting == pytest.approx(0.1)
