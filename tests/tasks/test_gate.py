from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.results.tables import PROMOTIONS
from tasks.gate import GateDecision, judge, promotion_rows
from tasks.workload.workload import Workload


def workload(**gate: Any) -> Workload:
    return Workload.model_validate(
        {
            "schema_version": 1,
            "name": "demo",
            "description": "an LSTM",
            "purpose": "sequence",
            "data": {"kind": "random-sequence"},
            "model": {"kind": "lstm"},
            "checkpoint": {"kind": "seeded"},
            "recipe": [
                {"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]},
                {"name": "int8", "method": "dynamic", "runtimes": ["eager", "torchscript"]},
                {"name": "half", "method": "dynamic", "dtype": "float16"},
            ],
            "gate": gate,
        }
    )


def row(candidate: str = "int8/torchscript", **changes: Any) -> dict[str, Any]:
    recipe, _, runtime = candidate.partition("/")
    good = {
        "workload": "demo",
        "recipe": recipe,
        "runtime": runtime,
        "setting": "primary",
        "attempt": 1,
        "status": "ok",
        "stage": None,
        "error": None,
        "verdict": "valid",
        "quality_metric": "loss",
        "higher_is_better": False,
        "quality": 5.0,
        "baseline_quality": 4.9,
        "quality_difference": 0.1,
        "size_bytes": 100,
        "size_ratio": 3.0,
        "speedup": 2.0,
        "speedup_low": 1.8,
        "speedup_high": 2.2,
        "peak_rss_bytes": 5000,
        "coverage": 0.9,
        "artifact_digest": "a" * 64,
    }
    return good | changes


STRICT = {
    "max_quality_drop": 0.2,
    "min_size_ratio": 2.0,
    "min_speedup": 1.5,
    "max_peak_rss_bytes": 10_000,
    "min_coverage": 0.5,
}


def only(decisions: tuple[GateDecision, ...]) -> GateDecision:
    assert len(decisions) == 1
    return decisions[0]


def outcomes(decision: GateDecision) -> dict[str, str]:
    return {rule.name: rule.outcome for rule in decision.rules}


def test_a_candidate_that_passes_every_rule_is_promoted_with_the_numbers_that_were_seen():
    decision = only(judge(workload(**STRICT), [row("float/eager", is_baseline=True), row()]))
    assert decision.decision == "promote"
    assert set(outcomes(decision).values()) == {"passed"}
    assert {rule.name: rule.seen for rule in decision.rules} == {
        "allowed_verdicts": "valid",
        "max_quality_drop": 0.1,
        "min_size_ratio": 3.0,
        "min_speedup": 1.8,
        "max_peak_rss_bytes": 5000.0,
        "min_coverage": 0.9,
    }
    assert decision.artifact_digest == "a" * 64


def test_the_baseline_is_never_judged_though_another_float_candidate_is():
    decisions = judge(workload(), [row("float/eager", speedup=9.0), row("float/torchscript")])
    assert [decision.candidate for decision in decisions] == ["float/torchscript"]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("max_quality_drop", {"quality_difference": 0.3}),
        ("min_size_ratio", {"size_ratio": 1.9}),
        ("min_speedup", {"speedup_low": 1.4}),
        ("max_peak_rss_bytes", {"peak_rss_bytes": 10_001}),
        ("min_coverage", {"coverage": 0.4}),
    ],
)
def test_one_failed_rule_rejects_and_is_the_reason(rule: str, change: dict[str, float]):
    decision = only(judge(workload(**STRICT), [row(**change)]))
    assert decision.decision == "reject"
    assert [name for name, outcome in outcomes(decision).items() if outcome == "failed"] == [rule]
    assert rule in decision.reason


@pytest.mark.parametrize(
    ("rule", "column"),
    [
        ("max_quality_drop", "quality_difference"),
        ("min_size_ratio", "size_ratio"),
        ("min_speedup", "speedup_low"),
        ("max_peak_rss_bytes", "peak_rss_bytes"),
        ("min_coverage", "coverage"),
    ],
)
@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_rule_without_a_number_holds(rule: str, column: str, missing: float | None):
    decision = only(judge(workload(**STRICT), [row(**{column: missing})]))
    assert decision.decision == "hold"
    assert outcomes(decision)[rule] == "held"
    assert rule in decision.reason


@pytest.mark.parametrize("verdict", ["inconclusive", "not-measured", None])
def test_a_verdict_that_is_not_allowed_holds_whatever_the_speed_was(verdict: str | None):
    for speed in (0.5, 50.0):
        decision = only(judge(workload(**STRICT), [row(verdict=verdict, speedup_low=speed)]))
        assert decision.decision == "hold"
        assert outcomes(decision)["min_speedup"] == "held"


def test_bad_quality_rejects_even_where_the_benchmark_is_inconclusive():
    assert only(judge(workload(**STRICT), [row(verdict="inconclusive", quality_difference=1.0)])).decision == "reject"


def test_an_allowed_inconclusive_verdict_is_judged_by_its_numbers():
    gate = STRICT | {"allowed_verdicts": ["valid", "inconclusive"]}
    assert only(judge(workload(**gate), [row(verdict="inconclusive")])).decision == "promote"
    assert only(judge(workload(**gate), [row(verdict="inconclusive", speedup_low=1.0)])).decision == "reject"


def test_a_failed_candidate_is_rejected_with_its_error():
    failed = row(status="failed", stage="quantize", error="no such module", quality_difference=None, speedup_low=None)
    decision = only(judge(workload(**STRICT), [failed]))
    assert decision.decision == "reject"
    assert "quantize" in decision.reason
    assert "no such module" in decision.reason


def test_a_drop_follows_the_direction_of_the_metric():
    gate = {"max_quality_drop": 0.5}
    better = row(quality_metric="top1", higher_is_better=True, quality_difference=3.0)
    worse = row(quality_metric="top1", higher_is_better=True, quality_difference=-0.6)
    assert only(judge(workload(**gate), [better])).decision == "promote"
    assert only(judge(workload(**gate), [worse])).decision == "reject"
    assert only(judge(workload(**gate), [row(quality_difference=-3.0)])).decision == "promote"


def test_a_relative_drop_is_a_share_of_the_baseline():
    gate = {"max_quality_drop": 0.02, "quality_drop": "relative"}
    assert only(judge(workload(**gate), [row(baseline_quality=5.0, quality_difference=0.09)])).decision == "promote"
    assert only(judge(workload(**gate), [row(baseline_quality=5.0, quality_difference=0.11)])).decision == "reject"


def test_a_relative_drop_from_nothing_cannot_be_decided():
    gate = {"max_quality_drop": 0.02, "quality_drop": "relative"}
    decision = only(judge(workload(**gate), [row(baseline_quality=0.0, quality_difference=0.5)]))
    assert decision.decision == "hold"
    assert "absolute" in decision.reason


def test_fastest_and_smallest_choose_differently_and_only_among_those_that_pass():
    rows = [
        row("int8/torchscript", speedup=2.0, size_bytes=50),
        row("other/torchscript", speedup=3.0, size_bytes=60),
        row("half/torchscript", speedup=9.0, size_bytes=10, quality_difference=9.0),
    ]
    for objective, best in (("fastest", "other/torchscript"), ("smallest", "int8/torchscript")):
        decided = {d.candidate: d.decision for d in judge(workload(objective=objective, max_quality_drop=1.0), rows)}
        assert decided.pop("half/torchscript") == "reject"
        assert decided.pop(best) == "promote"
        assert list(decided.values()) == ["pass"]


def test_the_last_attempt_counts_and_other_settings_and_workloads_do_not():
    rows = [
        row(attempt=2, speedup_low=2.0),
        row(attempt=1, verdict="inconclusive"),
        row(setting="throughput", speedup_low=0.1, attempt=3),
        row(workload="other", speedup_low=0.1, attempt=4),
    ]
    assert only(judge(workload(**STRICT), rows)).decision == "promote"


numbers = st.one_of(st.none(), st.floats(allow_nan=True), st.floats(0, 4))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["int8/torchscript", "other/torchscript", "half/torchscript", "float/torchscript", "float/eager"]
            ),
            st.fixed_dictionaries(
                {
                    "status": st.sampled_from(["ok", "ok", "ok", "failed"]),
                    "verdict": st.sampled_from(["valid", "valid", "inconclusive", "not-measured", None]),
                    "quality_difference": numbers,
                    "baseline_quality": numbers,
                    "size_ratio": numbers,
                    "size_bytes": st.one_of(st.none(), st.integers(1, 1000)),
                    "speedup": numbers,
                    "speedup_low": numbers,
                    "peak_rss_bytes": numbers,
                    "coverage": numbers,
                }
            ),
        ),
        unique_by=lambda pair: pair[0],
    ),
    st.sampled_from(["fastest", "smallest"]),
    st.sampled_from(["absolute", "relative"]),
    st.randoms(),
)
def test_whatever_is_measured_at_most_one_is_promoted_and_nothing_better_was_passed_over(
    given_rows, objective, drop, random
):
    rows = [row(candidate, **changes) for candidate, changes in given_rows]
    demo = workload(objective=objective, quality_drop=drop, max_quality_drop=1.0, min_speedup=0.5)
    decisions = judge(demo, rows)
    assert len(decisions) == len([r for r in rows if f"{r['recipe']}/{r['runtime']}" != "float/eager"])
    promoted = [decision for decision in decisions if decision.decision == "promote"]
    passed = [decision for decision in decisions if decision.decision == "pass"]
    assert len(promoted) == (1 if promoted or passed else 0)
    for decision in decisions:
        seen = set(outcomes(decision).values())
        expected = "reject" if "failed" in seen else "hold" if "held" in seen else "promote"
        assert decision.decision == expected or (decision.decision == "pass" and expected == "promote")
        assert decision.reason
        assert GateDecision.model_validate_json(decision.model_dump_json()) == decision
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert {d.candidate: d.decision for d in judge(demo, shuffled)} == {d.candidate: d.decision for d in decisions}


def test_decisions_become_rows_of_the_promotions_table():
    rows = promotion_rows(
        judge(workload(**STRICT), [row("int8/torchscript"), row("half/torchscript", coverage=None)]),
        workload="demo",
        run_id="r1",
        night=date(2026, 11, 21),
        decided_at=datetime(2026, 11, 21, 3, tzinfo=UTC),
        bundle_version="2026-11-21-0123456789ab",
    )
    table = pa.Table.from_pylist(rows, schema=PROMOTIONS.schema)
    table.validate(full=True)
    by_recipe = {entry["recipe"]: entry for entry in table.to_pylist()}
    assert by_recipe["int8"]["bundle_version"] == "2026-11-21-0123456789ab"
    assert by_recipe["half"]["bundle_version"] is None
    assert json.loads(by_recipe["half"]["rules"])[-1] == {
        "name": "min_coverage",
        "bound": 0.5,
        "seen": None,
        "outcome": "held",
        "note": "",
    }
