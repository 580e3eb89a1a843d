from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.results import Row
from storage.results.tables import PROMOTIONS
from tasks.decide.gate import DOES_NOT_PAY, GateDecision, Judgement, could_serve, may_be_promoted, pays
from tasks.decide.gate import judge as judge_beside
from tasks.values.results import CurrentBundle, RunInfo, UnknownBundle
from tasks.workload.recipe import CandidateName
from tasks.workload.workload import Workload

RUN = RunInfo(run_id="r1", night=date(2026, 11, 21), profile="quick")


def judge(
    workload: Workload, rows: list[Row], current: CurrentBundle | UnknownBundle | None = None, **more: Any
) -> Judgement:
    """Judge where nothing is current, unless the test says otherwise."""
    return judge_beside(workload, rows, current, **more)


def workload(**gate: Any) -> Workload:
    return Workload.model_validate(
        {
            "schema_version": 1,
            "name": "demo",
            "description": "an LSTM",
            "domain": "sequence",
            "data": {"kind": "random-sequence"},
            "model": {"kind": "lstm"},
            "checkpoint": {"kind": "seeded"},
            "recipe": [
                {"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]},
                {"name": "int8", "method": "dynamic", "runtimes": ["eager", "torchscript"]},
                {"name": "half", "method": "dynamic", "dtype": "float16"},
            ],
            "benchmark": {"capacity": {}},
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
        "speedup_bound_low": 1.7,
        "speedup_bound_high": 2.3,
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


def only(judgement: Judgement) -> GateDecision:
    assert len(judgement.decisions) == 1
    return judgement.decisions[0]


def decided(judgement: Judgement) -> dict[str, str]:
    return {str(decision.name): decision.decision for decision in judgement.decisions}


def outcomes(decision: GateDecision) -> dict[str, str]:
    return {rule.name: rule.outcome for rule in decision.rules}


def test_a_candidate_that_passes_every_rule_is_promoted_with_the_measured_numbers():
    decision = only(judge(workload(**STRICT), [row("float/eager", is_baseline=True), row()]))
    assert decision.decision == "promote"
    assert set(outcomes(decision).values()) == {"passed"}
    assert {rule.name: rule.seen for rule in decision.rules} == {
        "max_quality_drop": 0.1,
        "min_size_ratio": 3.0,
        "min_speedup": 1.7,
        "max_peak_rss_bytes": 5000.0,
        "min_coverage": 0.9,
    }
    assert decision.artifact_digest == "a" * 64


OVER = {"best_float": "float/torchscript", "method": "dynamic"}


def compared(low: float, high: float, **changes: Any) -> dict[str, Any]:
    return row(**OVER, over_best_float_bound_low=low, over_best_float_bound_high=high, **changes)


@pytest.mark.parametrize(
    ("bounds", "decision"), [((1.1, 1.3), "promote"), ((0.8, 0.9), "reject"), ((0.9, 1.1), "hold")]
)
def test_a_quantized_candidate_must_be_faster_than_a_float_file_of_any_runtime(
    bounds: tuple[float, float], decision: str
) -> None:
    found = only(judge(workload(**STRICT), [compared(*bounds)]))
    assert found.decision == decision
    assert outcomes(found)["min_over_best_float"] == {"promote": "passed", "reject": "failed", "hold": "held"}[decision]
    if decision == "reject":
        assert "float/torchscript is the fastest float candidate" in found.reason


@pytest.mark.parametrize("gate", [{"objective": "smallest"}, {"min_over_best_float": 0}])
def test_the_best_float_is_information_where_speed_is_not_the_objective_or_the_rule_is_off(
    gate: dict[str, Any],
) -> None:
    found = only(judge(workload(**STRICT | gate), [compared(0.8, 0.9)]))
    assert found.decision == "promote"
    assert "min_over_best_float" not in outcomes(found)


def test_a_float_candidate_wins_where_int8_does_not_pay_even_if_it_is_the_baseline() -> None:
    float_ = {"method": "none", "size_ratio": 1.0, "best_float": "float/torchscript"}
    alone = row("float/torchscript", **float_, speedup=1.0)
    slow = compared(0.8, 0.9)
    demo = workload(max_quality_drop=0.2)
    for baseline in ("float/torchscript", "float/eager"):
        judgement = judge(demo.with_baseline(baseline), [alone, slow])
        assert decided(judgement) == {"float/torchscript": "promote", "int8/torchscript": "reject"}
        assert judgement.promoted is not None
        assert judgement.promoted.reason.endswith(DOES_NOT_PAY)
    # A float file that another rule rejects is not promoted, and the quantized candidate stays rejected.
    rejected = judge(workload(max_quality_drop=0.2, min_size_ratio=1.2), [alone, slow])
    assert rejected.promoted is None
    assert not pays(rejected.decisions)
    assert pays(judge(demo, [alone, compared(1.1, 1.2)]).decisions)


def test_only_a_float_candidate_that_could_be_deployed_is_the_best_float() -> None:
    demo, float_ = workload(max_quality_drop=0.2, min_size_ratio=3.0), {"method": "none", "size_ratio": 1.0}
    assert could_serve(demo, row("float/torchscript", **float_))
    assert not could_serve(demo, row("float/eager", **float_))
    assert not could_serve(demo, row("float/torchscript", **float_, quality_difference=9.0))
    assert not could_serve(demo, row("half/torchscript", method="cast"))


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("max_quality_drop", {"quality_difference": 0.3}),
        ("min_size_ratio", {"size_ratio": 1.9}),
        ("min_speedup", {"speedup_bound_low": 1.2, "speedup_bound_high": 1.4}),
        ("max_peak_rss_bytes", {"peak_rss_bytes": 10_001}),
        ("min_coverage", {"coverage": 0.4}),
    ],
)
@pytest.mark.slow
def test_one_failed_rule_rejects_and_is_the_reason(rule: str, change: dict[str, float]):
    decision = only(judge(workload(**STRICT), [row(**change)]))
    assert decision.decision == "reject"
    assert [name for name, outcome in outcomes(decision).items() if outcome == "failed"] == [rule]
    assert rule in decision.reason


EXECUTED = {
    "int8_time_share": 0.8,
    "float_operators": '[{"name": "fc/node", "type": "Gemm", "share": 0.2, "reason": "it is excluded"}]',
    "instructions": [("avx2-int8", 0.7)],
    "saturation": 0.01,
    "batch_difference": 2e-7,
}
PROVEN = {"min_int8_time_share": 0.5, "max_saturation": 0.05, "require_batch_invariance": True}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"int8_time_share": 0.4},
            "min_int8_time_share requires 0.5, but the measured value is 0.4 (Gemm of fc/node, 20% of the time: ",
        ),
        ({"saturation": 0.2}, "max_saturation allows 0.05, but the measured value is 0.2 (it computes with avx2-int8)"),
        ({"batch_difference": 0.01}, "max_batch_difference allows 0.0001, but the measured value is 0.01"),
    ],
)
def test_the_proofs_results_reject_a_candidate_with_the_reason(change: dict[str, float], reason: str):
    decision = only(judge(workload(**PROVEN), [row(**EXECUTED | change)]))
    assert decision.decision == "reject"
    assert decision.reason.startswith(reason)


def test_quality_is_judged_by_the_end_of_its_interval():
    gate = workload(max_quality_drop=0.5)
    for ends, decision in (((-0.2, 0.4), "promote"), ((-0.2, 0.7), "hold"), ((0.6, 0.9), "reject")):
        low, high = ends
        changes = {"quality_difference_low": low, "quality_difference_high": high, "quality_difference": sum(ends) / 2}
        assert only(judge(gate, [row(**changes)])).decision == decision
        turned = {
            "higher_is_better": True,
            "quality_difference_low": -high,
            "quality_difference_high": -low,
            "quality_difference": -sum(ends) / 2,
        }
        assert only(judge(gate, [row(**turned)])).decision == decision


def test_nothing_is_decided_on_a_candidate_that_the_machine_cannot_have():
    skipped = row(status="skipped", stage="build", error="openvino is not installed", quality_difference=None)
    assert not judge(workload(**STRICT), [skipped]).decisions


def test_a_relative_drop_is_a_share_of_the_baseline():
    gate = {"max_quality_drop": 0.02, "quality_drop": "relative"}
    assert only(judge(workload(**gate), [row(baseline_quality=5.0, quality_difference=0.09)])).decision == "promote"
    assert only(judge(workload(**gate), [row(baseline_quality=5.0, quality_difference=0.11)])).decision == "reject"
    nothing = only(judge(workload(**gate), [row(baseline_quality=0.0, quality_difference=0.5)]))
    assert nothing.decision == "hold"
    assert "absolute" in nothing.reason


def test_fastest_and_smallest_choose_differently_and_only_among_those_that_pass():
    rows = [
        row("int8/torchscript", speedup=2.0, size_bytes=50),
        row("other/torchscript", speedup=3.0, size_bytes=60),
        row("half/torchscript", speedup=9.0, size_bytes=10, quality_difference=9.0),
    ]
    for objective, best in (("fastest", "other/torchscript"), ("smallest", "int8/torchscript")):
        found = decided(judge(workload(objective=objective, max_quality_drop=1.0), rows))
        assert found.pop("half/torchscript") == "reject"
        assert found.pop(best) == "promote"
        assert list(found.values()) == ["pass"]


def test_other_settings_and_workloads_and_the_verdict_on_noise_do_not_count():
    rows = [
        row(verdict="inconclusive"),
        row(setting="a/a", speedup_bound_low=0.05, speedup_bound_high=0.1),
        row(workload="another", speedup_bound_low=0.05, speedup_bound_high=0.1),
        row(workload="other", speedup_bound_low=0.05, speedup_bound_high=0.1),
    ]
    assert only(judge(workload(**STRICT), rows)).decision == "promote"


VERSION = "2026-11-20-0123456789ab"


def current(**changes: Any) -> CurrentBundle:
    return CurrentBundle(version=VERSION, **changes)


def test_a_current_bundle_is_replaced_only_by_a_decidedly_faster_candidate_in_the_same_launches():
    deployed = row("int8/torchscript", setting="current")
    slower = row("int8/torchscript", over_current=1.2, over_current_low=0.9, over_current_high=1.5)
    faster = row("half/torchscript", over_current=1.3, over_current_low=1.1, over_current_high=1.6)
    stays = judge(workload(), [deployed, slower], current())
    assert decided(stays) == {"int8/torchscript": "pass"}
    assert "the current bundle stays: this candidate is 0.9 to 1.5 times as fast" in only(stays).reason
    goes = judge(workload(), [deployed, slower, faster], current())
    assert decided(goes) == {"int8/torchscript": "pass", "half/torchscript": "promote"}
    assert goes.current is not None
    assert (goes.current.version, goes.current.stays) == (VERSION, False)
    assert "1.3 times as fast" in goes.current.reason


def test_with_size_as_objective_a_current_bundle_is_replaced_by_a_smaller_candidate():
    deployed = row("int8/torchscript", setting="current", size_bytes=100)
    for size, decision in ((200, "pass"), (100, "pass"), (99, "promote"), (None, "pass")):
        judgement = judge(workload(objective="smallest"), [deployed, row(size_bytes=size)], current())
        assert only(judgement).decision == decision
    judgement = judge(workload(objective="smallest"), [deployed, row(size_bytes=40)], current())
    assert only(judgement).reason.endswith("2.5 times as small as the current bundle")
    unsized = deployed | {"size_bytes": None}
    assert only(judge(workload(objective="smallest"), [unsized, row(size_bytes=50)], current())).decision == "pass"


@pytest.mark.parametrize(
    ("found", "deployed", "why"),
    [
        (
            current(),
            row(setting="current", size_ratio=1.0),
            "it no longer passes: min_size_ratio requires 2, but the measured value is 1",
        ),
        (current(outdated="it was made from checkpoint a"), row(setting="current"), "made from checkpoint a"),
        (current(fault="model.ts was changed"), None, "model.ts was changed"),
    ],
)
def test_an_unfit_current_bundle_is_replaced_by_whatever_passes_and_stays_where_nothing_does(
    found: CurrentBundle, deployed: dict[str, Any] | None, why: str
):
    gate, rows = workload(min_size_ratio=2.0), [deployed] if deployed else []
    goes = judge(gate, [*rows, row(size_ratio=2.0)], found)
    assert only(goes).decision == "promote"
    stays = judge(gate, [*rows, row(size_ratio=1.9)], found)
    assert only(stays).decision == "reject"
    for judgement, stayed in ((goes, False), (stays, True)):
        assert judgement.current is not None
        assert judgement.current.stays == stayed
        assert why in judgement.current.reason


@pytest.mark.parametrize(
    ("candidate", "changes", "may"),
    [
        # Nothing that only timing shows counts yet.
        ("int8/torchscript", {"speedup_bound_low": 0.1, "speedup_bound_high": 0.2, "peak_rss_bytes": 10**9}, True),
        ("int8/torchscript", {"size_ratio": 1.0}, False),
        ("int8/torchscript", {"quality_difference": None}, False),
        ("int8/torchscript", {"status": "failed"}, False),
        ("int8/eager", {}, False),
        ("int8/removed", {}, False),
    ],
)
def test_timing_decides_only_on_candidates_that_pass_the_other_rules(
    candidate: str, changes: dict[str, Any], may: bool
):
    assert may_be_promoted(workload(**STRICT), row(candidate, **changes)) is may


@pytest.mark.parametrize("runtime", ["eager", "removed"])
def test_a_candidate_that_cannot_be_deployed_passes_and_is_never_promoted(runtime: str):
    decision = only(judge(workload(**STRICT), [row(f"int8/{runtime}")]))
    assert decision.decision == "pass"
    assert decision.reason == f"passes all 5 rules; {runtime} is never deployed"


@pytest.mark.parametrize(
    ("low", "decisions"), [(1.2, ("pass", "promote")), (0.99, ("promote", "pass"))], ids=["faster", "not faster"]
)
def test_the_current_bundle_that_was_made_again_tonight_gives_way_only_to_a_faster_candidate(
    low: float, decisions: tuple[str, str]
):
    rows = [row(), row("half/torchscript", over_current=1.5, over_current_low=low, over_current_high=1.8)]
    judgement = judge(workload(), rows, current(same_as="int8/torchscript"))
    assert tuple(decided(judgement).values()) == decisions
    assert judgement.current is not None
    assert judgement.current.stays is (decisions[0] == "promote")


def test_a_candidate_must_be_faster_than_the_current_bundle_by_more_than_the_margin():
    deployed = row("half/torchscript", setting="current")
    for low, decision in ((1.2, "pass"), (1.21, "promote")):
        challenger = row(over_current=1.5, over_current_low=low, over_current_high=1.8)
        assert only(judge(workload(margin=1.2), [deployed, challenger], current())).decision == decision


def test_a_rule_that_is_open_for_the_current_bundle_makes_room_unless_it_is_the_speed():
    fast, beside = {"speedup_bound_low": 1.6}, {"over_current": 1.0, "over_current_low": 0.9}
    slow = row("half/torchscript", setting="current", speedup_bound_low=1.4, speedup_bound_high=1.6)
    challenger = row(**fast, **beside)
    assert only(judge(workload(**STRICT), [slow, challenger], current())).decision == "pass"
    ends = {"quality_difference_low": 0.1, "quality_difference_high": 0.3}
    goes = only(judge(workload(**STRICT), [slow | ends, challenger], current()))
    assert goes.decision == "promote"
    assert (
        "undecided for the current bundle: max_quality_drop allows 0.2, but the measured value is uncertain"
        in goes.reason
    )


KILLED = "its process was killed, most likely because memory ran out"


@pytest.mark.parametrize(
    ("found", "changes", "why"),
    [
        (UnknownBundle(reason="the worker was lost", version=VERSION), {}, "the worker was lost"),
        (current(), {"setting": "current", "status": "failed", "stage": "evaluate", "error": KILLED}, KILLED),
        (current(), {"setting": "current", "status": "skipped", "stage": "evaluate", "error": KILLED}, KILLED),
        (current(same_as="int8/torchscript"), {"status": "failed", "stage": "evaluate", "error": KILLED}, KILLED),
        (current(same_as="int8/torchscript"), {"status": "skipped"}, "it was not measured"),
    ],
)
def test_while_the_current_bundle_is_unknown_passing_candidates_are_held(
    found: CurrentBundle | UnknownBundle, changes: dict[str, Any], why: str
):
    rows = [row("int8/torchscript", **changes), row("half/torchscript", over_current_low=9.0, over_current=9.0)]
    judgement = judge(workload(), rows, found)
    assert judgement.promoted is None
    assert judgement.unknown == why or judgement.unknown == f"evaluate: {why}"
    assert decided(judgement)["half/torchscript"] == "hold"
    assert judgement.decisions[-1].reason.endswith(f"; the current bundle is unknown: {judgement.unknown}")
    assert judgement.current is not None
    assert (judgement.current.version, judgement.current.stays) == (VERSION, True)
    assert why in judgement.current.reason


def test_whether_a_bundle_stays_is_left_open_if_no_version_is_known():
    judgement = judge(workload(), [row()], UnknownBundle(reason="current.json cannot be read"))
    assert judgement.promoted is None
    (found,) = judgement.rows(RUN, "demo", datetime.now(UTC))
    assert [found[f"current_{name}"] for name in ("version", "stays")] == [None, None]
    assert "current.json cannot be read" in str(found["current_reason"])


@pytest.mark.parametrize("found", [current(outdated="it is outdated"), current(fault="model.ts was changed")])
def test_certain_facts_about_an_unmeasured_current_bundle_count(found: CurrentBundle):
    failed = row("half/torchscript", setting="current", status="failed", stage="evaluate", error=KILLED)
    assert only(judge(workload(), [row(), failed], found)).decision == "promote"


def test_the_runner_up_wins_if_somebody_rolled_back_from_the_best():
    rows = [row("int8/torchscript", speedup=3.0), row("half/torchscript", speedup=2.0)]
    judgement = judge(workload(), rows, withdrawn=[CandidateName("int8", "torchscript")])
    assert decided(judgement) == {"int8/torchscript": "pass", "half/torchscript": "promote"}
    assert "this content was rolled back" in judgement.decisions[0].reason
    rows[0] = row("int8/torchscript", speedup=3.0, speedup_bound_low=0.5)
    held = judge(workload(min_speedup=1.05), rows, withdrawn=[CandidateName("int8", "torchscript")])
    assert decided(held) == {"int8/torchscript": "hold", "half/torchscript": "promote"}
    assert held.decisions[0].reason.endswith("; this content was rolled back, and stays withdrawn")


def replaced() -> Judgement:
    """What the gate says of a challenger that is twice as fast as the current bundle."""
    faster = row("half/torchscript", over_current=2.0, over_current_low=1.9)
    return judge(workload(), [faster, row(setting="current")], current())


def test_a_candidate_that_could_not_be_packaged_replaces_nothing():
    assert replaced().current.stays is False
    judgement = replaced().not_packaged("its bundle could not be made: the disk is full", VERSION)
    assert judgement.promoted is None
    assert only(judgement).decision == "hold"
    assert "the disk is full" in only(judgement).reason
    assert judgement.current.stays is True
    assert "half/torchscript was chosen, but" in judgement.current.reason
    switched = replaced().not_packaged("its bundle could not be made", "2026-11-21-aaaaaaaaaaaa").current
    assert switched.stays is False
    assert "meanwhile the current bundle changed to 2026-11-21-aaaaaaaaaaaa" in switched.reason


def test_a_bundle_that_stays_needs_no_packaging_and_says_whether_a_challenger_passes():
    stays = judge(workload(), [row()], current(same_as="int8/torchscript"))
    assert stays.current.reason == "it passes, and no challenger is decidedly better"
    assert stays.not_packaged("the disk is full", VERSION) is stays
    failed = row("half/torchscript", status="failed", stage="evaluate", error=KILLED)
    alone = judge(workload(), [failed, row(setting="current")], current())
    assert alone.current.reason == "no challenger passes"


def test_a_bundle_was_replaced_only_if_another_is_current_after_packaging():
    assert replaced().packaged("2026-11-21-aaaaaaaaaaaa") == replaced()
    same = replaced().packaged(VERSION)
    assert same.current.stays is True
    assert "the same content" in same.current.reason
    stays = judge(workload(), [row()], current(same_as="int8/torchscript"))
    assert stays.packaged(VERSION) == stays
    again = stays.packaged("2026-11-21-aaaaaaaaaaaa").current
    assert again.stays is False
    assert "packaged again" in again.reason


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
                    "over_current_low": numbers,
                    "over_current": numbers,
                    "quality_difference": numbers,
                    "baseline_quality": numbers,
                    "size_ratio": numbers,
                    "size_bytes": st.one_of(st.none(), st.integers(1, 1000)),
                    "speedup": numbers,
                    "speedup_bound_low": numbers,
                    "speedup_bound_high": numbers,
                    "peak_rss_bytes": numbers,
                    "coverage": numbers,
                    "capacity_ratio": numbers,
                    "capacity_ratio_low": numbers,
                    "capacity_ratio_high": numbers,
                }
            ),
        ),
        unique_by=lambda pair: pair[0],
    ),
    st.sampled_from(["fastest", "smallest"]),
    st.sampled_from(["absolute", "relative"]),
    st.sampled_from(["int8/torchscript", "other/torchscript", "", None]),
    st.randoms(),
)
@pytest.mark.slow
def test_whatever_is_measured_at_most_one_is_promoted_and_only_a_current_bundle_keeps_one_from_it(
    given_rows, objective, drop, same_as, random
):
    rows = [row(candidate, **changes) for candidate, changes in given_rows]
    demo = workload(objective=objective, quality_drop=drop, max_quality_drop=1.0, min_speedup=0.5)
    held = None if same_as is None else current(same_as=same_as or None)
    judgement = judge(demo, rows, held)
    decisions = judgement.decisions
    assert len(decisions) == len([r for r in rows if f"{r['recipe']}/{r['runtime']}" != "float/eager"])
    if judgement.unknown:
        assert judgement.current is not None
        assert judgement.current.stays
        assert {"promote", "pass"}.isdisjoint(each.decision for each in decisions if each.runtime != "eager")
        return
    promoted = [decision for decision in decisions if decision.decision == "promote"]
    passed = [decision for decision in decisions if decision.decision == "pass"]
    assert len(promoted) <= 1
    stays = judgement.current is not None and judgement.current.stays
    assert promoted or not passed or stays
    assert not promoted or not stays or str(promoted[0].name) == same_as
    for decision in decisions:
        seen = set(outcomes(decision).values())
        expected = "reject" if "failed" in seen else "hold" if "held" in seen else "promote"
        assert decision.decision == expected or (decision.decision == "pass" and expected == "promote")
        assert decision.reason
        assert GateDecision.model_validate_json(decision.model_dump_json()) == decision
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert decided(judge(demo, shuffled, held)) == decided(judgement)


def test_decisions_become_rows_of_the_promotions_table():
    judgement = judge(workload(**STRICT), [row("int8/torchscript"), row("half/torchscript", coverage=None)])
    rows = judgement.rows(RUN, "demo", datetime(2026, 11, 21, 3, tzinfo=UTC), "2026-11-21-0123456789ab")
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


COLD = {
    "caches": "cold",
    "cold_speedup": 3.0,
    "cold_speedup_bound_low": 2.5,
    "cold_speedup_bound_high": 3.5,
}


def test_the_caches_of_the_row_say_which_speed_decides():
    slow_when_cold = COLD | {"cold_speedup_bound_low": 0.7, "cold_speedup_bound_high": 0.9}
    slow_when_warm = COLD | {"speedup_bound_low": 0.7, "speedup_bound_high": 0.9}
    for changes, decision, seen in (
        (slow_when_cold, "reject", 0.9),
        (slow_when_cold | {"caches": "warm"}, "promote", 1.7),
        (slow_when_cold | {"caches": None}, "promote", 1.7),
        (slow_when_warm, "promote", 2.5),
        (slow_when_warm | {"caches": "warm"}, "reject", 0.9),
    ):
        found = only(judge(workload(**STRICT), [row(**changes)]))
        assert found.decision == decision
        assert {rule.name: rule.seen for rule in found.rules}["min_speedup"] == seen


def test_the_current_bundle_is_replaced_by_a_faster_candidate_with_the_deciding_caches():
    over = {"over_current": 0.9, "over_current_low": 0.8, "over_current_high": 1.0}
    cold_over = {"cold_over_current": 1.5, "cold_over_current_low": 1.3, "cold_over_current_high": 1.7}
    current = CurrentBundle(version="2026-11-20-a")
    for caches, stays in (("cold", False), ("warm", True)):
        common = COLD | {"caches": caches}
        rows = [row(**common, **over, **cold_over), row("half/torchscript", **common, setting="current")]
        standing = judge(workload(), rows, current).current
        assert standing is not None
        assert standing.stays is stays
