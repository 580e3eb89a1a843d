"""Rules on rows whose numbers are unknown: they hold, and say why."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.gate import judge
from tasks.results import Incumbent
from tasks.workload.gate import RuleOutcome, rules_on
from tests.tasks.test_gate import EXECUTED, PROVEN, STRICT, decided, only, row, workload

GATE = STRICT | PROVEN
WHY = "The memory process was killed by SIGKILL. The host probably ran out of memory."
GOOD = EXECUTED | {"quality_difference_low": 0.05, "quality_difference_high": 0.15}


def unknown(*columns: str, **changes: Any) -> dict[str, Any]:
    """A good row without a value in these columns."""
    return row(**GOOD | dict.fromkeys(columns) | {"unknown": dict.fromkeys(columns, f"{WHY}\nits last line")} | changes)


def rule(name: str, of: dict[str, Any]) -> RuleOutcome:
    [found] = [each for each in rules_on(workload(**GATE).gate, of) if each.name == name]
    return found


def test_with_every_number_no_rule_holds():
    assert {each.outcome for each in rules_on(workload(**GATE).gate, row(**GOOD))} == {"passed"}


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("max_quality_drop", "quality_difference"),
        # What is left of the interval would pass, and without any of it the rule would go by the difference alone.
        ("max_quality_drop", "quality_difference_low"),
        ("max_quality_drop", "quality_difference_high"),
        ("min_size_ratio", "size_ratio"),
        ("min_speedup", "speedup_bound_low"),
        ("min_speedup", "speedup_bound_high"),
        ("max_peak_rss_bytes", "peak_rss_bytes"),
        ("min_coverage", "coverage"),
        ("min_int8_time_share", "int8_time_share"),
        ("max_saturation", "saturation"),
        ("max_batch_difference", "batch_difference"),
    ],
)
@pytest.mark.slow
def test_a_rule_whose_number_is_unknown_holds_and_says_why(name: str, column: str):
    found = rule(name, unknown(column))
    assert (found.outcome, found.seen, found.unknown, found.note) == ("held", None, True, WHY)
    decision = only(judge(workload(**GATE), [unknown(column)], None))
    assert decision.decision == "hold"
    assert decision.reason == f"{name} asks for {found.bound:g}, saw nothing ({WHY})"


def test_a_share_of_a_baseline_that_is_unknown_holds():
    gate = workload(max_quality_drop=0.5, quality_drop="relative").gate
    [found] = rules_on(gate, unknown("baseline_quality"))
    assert (found.outcome, found.note) == ("held", WHY)


def test_bounds_with_cold_caches_are_unknown_by_themselves():
    cold = {"caches": "cold", "cold_speedup_bound_low": 1.7, "cold_speedup_bound_high": 2.3}
    assert rule("min_speedup", unknown("speedup_bound_low", **cold)).outcome == "passed"
    assert rule("min_speedup", unknown("cold_speedup_bound_low", "speedup", **cold)).unknown


def test_a_number_that_nobody_could_have_is_not_unknown():
    found = rule("min_int8_time_share", row(**GOOD | {"int8_time_share": None, "float_operators": "[]"}))
    assert (found.outcome, found.unknown, found.note) == ("held", False, "its runtime has no profiler")


def test_reasons_as_they_are_read_from_the_store():
    assert rule("max_peak_rss_bytes", unknown("peak_rss_bytes") | {"unknown": [("peak_rss_bytes", WHY)]}).note == WHY


def test_the_incumbent_is_not_replaced_because_of_what_could_not_be_measured_of_it():
    incumbent = Incumbent(version="2026-11-20-0123456789ab")
    slow = {"speedup_bound_low": 1.6, "over_incumbent": 1.0, "over_incumbent_low": 0.9, "over_incumbent_high": 1.1}
    challenger = row(**GOOD | slow)
    held = row("half/torchscript", **GOOD) | {"setting": "incumbent"}
    killed = held | {"peak_rss_bytes": None, "unknown": {"peak_rss_bytes": WHY}}
    for deployed in (held, killed):
        judgement = judge(workload(**GATE), [challenger, deployed], incumbent)
        assert judgement.incumbent is not None
        assert judgement.incumbent.stays
        assert decided(judgement) == {"int8/torchscript": "pass"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_no_column_takes_is_no_number_either(value: float):
    assert rule("max_batch_difference", row(**GOOD | {"batch_difference": value})).outcome == "held"
