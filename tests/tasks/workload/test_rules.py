"""What the gate's keys may be, and its rules on single rows: those whose numbers are unknown hold, and say why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.data.paired import score_difference
from tasks.decide.gate import judge, may_be_promoted
from tasks.values.results import CurrentBundle
from tasks.workload.gate import Gate
from tasks.workload.rules import RuleOutcome, rows_to_decide, rules_on
from tests.tasks.decide.test_gate import EXECUTED, PROVEN, STRICT, decided, only, row, workload

GATE = STRICT | PROVEN
WHY = "The memory process was killed by SIGKILL. The host probably ran out of memory."
GOOD = EXECUTED | {"quality_difference_low": 0.05, "quality_difference_high": 0.15}


def unknown(*columns: str, **changes: Any) -> dict[str, Any]:
    """A good row without a value in these columns."""
    return row(**GOOD | dict.fromkeys(columns) | {"unknown": dict.fromkeys(columns, f"{WHY}\nits last line")} | changes)


def rule(name: str, of: dict[str, Any]) -> RuleOutcome:
    [found] = [each for each in rules_on(workload(**GATE).gate, of) if each.name == name]
    return found


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
def test_a_rule_with_an_unknown_number_holds_the_candidate_with_the_reason(name: str, column: str):
    found = rule(name, unknown(column))
    assert (found.outcome, found.seen, found.note) == ("held", None, WHY)
    decision = only(judge(workload(**GATE), [unknown(column)], None))
    assert decision.decision == "hold"
    verb = "allows" if name.startswith("max_") else "requires"
    assert decision.reason == f"{name} {verb} {found.bound:g}, but the value is unknown ({WHY})"


def test_bounds_with_cold_caches_can_be_unknown_separately():
    cold = {"caches": "cold", "cold_speedup_bound_low": 1.7, "cold_speedup_bound_high": 2.3}
    assert rule("min_speedup", unknown("speedup_bound_low", **cold)).outcome == "passed"
    assert rule("min_speedup", unknown("cold_speedup_bound_low", "speedup", **cold)).note == WHY


def test_an_unmeasured_number_does_not_cause_the_current_bundles_replacement():
    current = CurrentBundle(version="2026-11-20-0123456789ab")
    slow = {"speedup_bound_low": 1.6, "over_current": 1.0, "over_current_low": 0.9, "over_current_high": 1.1}
    challenger = row(**GOOD | slow)
    held = row("half/torchscript", **GOOD) | {"setting": "current"}
    killed = held | {"peak_rss_bytes": None, "unknown": {"peak_rss_bytes": WHY}}
    for deployed in (held, killed):
        judgement = judge(workload(**GATE), [challenger, deployed], current)
        assert judgement.current is not None
        assert judgement.current.stays
        assert decided(judgement) == {"int8/torchscript": "pass"}


SHARES = ("min_coverage", "min_int8_time_share", "max_saturation")


@pytest.mark.parametrize(
    ("key", "value"),
    [*((key, value) for key in SHARES for value in (-0.5, 1.5)), ("max_quality_drop", -0.5), ("margin", 0.5)],
)
def test_impossible_bounds_are_refused(key: str, value: float):
    with pytest.raises(ValidationError, match=key):
        Gate(**{key: value})


@pytest.mark.parametrize(
    ("name", "low", "high", "outcome", "seen"),
    [
        # The bound is 1.5 at least.
        ("min_speedup", 1.5, 1.6, "passed", 1.5),
        ("min_speedup", 1.4, 1.5, "held", 1.4),
        ("min_speedup", 1.3, 1.4, "failed", 1.4),
        # The bound is 0.2 at most.
        ("max_quality_drop", 0.1, 0.2, "passed", 0.2),
        ("max_quality_drop", 0.2, 0.3, "held", 0.3),
        ("max_quality_drop", 0.3, 0.4, "failed", 0.3),
    ],
)
def test_a_value_equal_to_the_bound_passes_and_the_deciding_end_is_recorded(
    name: str, low: float, high: float, outcome: str, seen: float
):
    columns = ("speedup_bound_low", "speedup_bound_high", "quality_difference_low", "quality_difference_high")
    ends = columns[:2] if name == "min_speedup" else columns[2:]
    found = rule(name, row(**GOOD | dict(zip(ends, (low, high), strict=True))))
    assert (found.outcome, found.seen) == (outcome, seen)


def test_before_timing_only_the_rules_without_timing_are_checked():
    found = [each.name for each in rules_on(workload(**GATE).gate, row(**GOOD), timed=False)]
    assert found == ["max_quality_drop", "min_size_ratio", "min_coverage", "max_batch_difference"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"status": "failed", "stage": "build", "error": "no such module"}, "failed in build: no such module"),
        ({"status": "skipped", "stage": None, "error": None}, "failed in a stage: no reason was recorded"),
    ],
)
def test_a_failed_candidate_breaks_one_rule_that_names_the_stage(changes: dict[str, Any], why: str):
    [found] = rules_on(workload(**GATE).gate, row(**changes))
    assert (found.name, found.outcome, found.describe()) == ("status", "failed", why)


@pytest.mark.parametrize(
    ("low", "high", "note"),
    [
        (-1.0, 0.8, "; interval: -0.8 to 1; 1,000 samples do not decide, about 7,200 would decide"),
        (-0.5, 0.1, "interval: -0.1 to 0.5"),  # passes
        (-0.9, 0.6, "; 1,000 samples do not decide, about 5,500 would decide"),
    ],
)
def test_an_undecided_quality_says_how_many_samples_would_decide(low: float, high: float, note: str):
    gate = workload(max_quality_drop=0.5).gate
    quality = {"quality_difference": -0.2, "quality_difference_low": low, "quality_difference_high": high}
    [found] = rules_on(gate, row(**quality, evaluation_samples=1000, higher_is_better=True))
    assert found.note.endswith(note)
    assert rules_on(gate, row(**quality, evaluation_samples=None, higher_is_better=True))[0].note in found.note


# The baseline's loss is 4.9 and its interval breaks the bound, so without the rule the candidate is rejected.
WORSE = GOOD | {"quality_difference": 3.0, "quality_difference_low": 2.9, "quality_difference_high": 3.1}


@pytest.mark.parametrize("changes", [GOOD, WORSE])
@pytest.mark.parametrize("constant", [4.9, 4.0])
def test_a_baseline_no_better_than_a_constant_answer_holds_every_candidate(changes: dict[str, Any], constant: float):
    rows = [row(candidate, **changes | {"constant_quality": constant}) for candidate in ("float/eager", "int8/eager")]
    rows += [row(**changes | {"constant_quality": constant}), row("half/eager", status="failed", stage="build")]
    judgement = judge(workload(**GATE), rows, None)
    assert decided(judgement) == {"int8/eager": "hold", "int8/torchscript": "hold", "half/eager": "reject"}
    assert judgement.decisions[0].reason == (
        f"the baseline's loss is 4.9, no better than the best constant answer ({constant:g}); check the labels, the "
        "preprocessing and the weights"
    )
    assert not may_be_promoted(workload(**GATE), rows[2])
    standing = judge(workload(**GATE), rows, CurrentBundle(version="2026-01-01-a", same_as="int8/torchscript")).current
    assert standing is not None
    assert standing.stays


@pytest.mark.parametrize(
    "changes",
    [
        {"constant_quality": 4.91},
        {"constant_quality": None},
        {"constant_quality": 4.8, "higher_is_better": True, "quality_difference_low": -0.1},
        {"constant_quality": 4.8, "baseline_quality": None},
    ],
)
def test_a_baseline_that_may_be_better_than_the_constant_answer_holds_no_candidate(changes: dict[str, Any]):
    assert {each.outcome for each in rules_on(workload(**GATE).gate, row(**GOOD | changes))} == {"passed"}


def interval(lost: int, gained: int, rows: int) -> tuple[float, float, float]:
    """The drop of an accuracy in points, and its interval, if so many answers of `rows` changed."""
    before = np.full(rows, 100.0)
    before[lost : lost + gained] = 0
    after = before.copy()
    after[:lost], after[lost : lost + gained] = 0, 100
    mean, low, high = score_difference(before, after)
    return -mean, -high, -low


@pytest.mark.parametrize(("lost", "gained"), [(10, 10), (16, 14), (8, 9), (14, 5)])
def test_as_many_rows_with_the_same_disagreement_decide_and_a_quarter_does_not(lost: int, gained: int) -> None:
    drop, low, high = interval(lost, gained, 1000)
    assert low < 0.5 < high
    needed = rows_to_decide(drop, low, high, 0.5, 1000)
    assert needed is not None
    for rows, is_decided in ((needed, True), (needed // 4, False)):
        _, low, high = interval(round(lost * rows / 1000), round(gained * rows / 1000), rows)
        assert (not low <= 0.5 < high) is is_decided


def test_the_number_is_rounded_up_to_two_digits_and_is_unknown_at_the_bound() -> None:
    assert rows_to_decide(0.0, -1.07, 1.07, 0.5, 1000) == 4600
    assert rows_to_decide(1.0, 0.4, 1.6, 0.5, 100) == 150
    assert rows_to_decide(0.5, -0.5, 1.5, 0.5, 1000) is None
    assert rows_to_decide(0.4999, -0.5, 1.5, 0.5, 1000) is None
