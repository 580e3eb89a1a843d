"""What is evaluated, compared and timed, whose speed decides, and what stages that ended make of a result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.measure.benchmark.stage import contest_of
from tasks.run.plan import (
    bundle_to_evaluate,
    comparisons,
    floats_to_time,
    gathered,
    recipes_to_study,
    subjects_to_time,
    with_baseline,
    with_benchmark,
    with_comparisons,
    with_current,
    with_evaluation,
)
from tasks.values.results import CandidateResult, CurrentBundle, Failure, UnknownBundle, WorkloadResult
from tasks.workload.recipe import CandidateName
from tests.tasks.decide.test_gate import workload
from tests.tasks.run.given import (
    BENCHMARK,
    JOB,
    KILLED,
    VERSION,
    built,
    candidate,
    deployed,
    difference,
    evaluation,
)

BASELINE = candidate("float", "eager")


def result(*candidates: CandidateResult, current: CurrentBundle | None = None, **gate: Any) -> WorkloadResult:
    found = WorkloadResult(workload=workload(**gate), job=JOB, candidates=candidates)
    return with_current(found, current)


def failed(recipe: str, runtime: str = "torchscript") -> CandidateResult:
    return candidate(recipe, runtime).model_copy(update={"evaluation": None, "failure": KILLED})


def test_the_current_bundle_is_evaluated_only_if_it_can_be_compared() -> None:
    assert bundle_to_evaluate(result(BASELINE, current=deployed())) == deployed().candidate
    same = deployed().model_copy(update={"same_as": "float/eager"})
    for found in (
        result(BASELINE),
        result(BASELINE, current=same),
        result(candidate("int8"), current=deployed()),
        result(failed("float", "eager"), current=deployed()),
    ):
        assert bundle_to_evaluate(found) is None


def test_without_the_baselines_quality_nothing_is_compared() -> None:
    for found, why in (
        (result(failed("float", "eager"), candidate("int8")), KILLED.error),
        (result(candidate("int8")), "it was not run"),
    ):
        assert comparisons(found, {}) == Failure(stage="compare", error=f"The baseline float/eager failed: {why}")


def test_only_candidates_that_a_search_chose_are_compared_with_wider_intervals() -> None:
    found = result(BASELINE, failed("int8", "eager"), candidate("half"), current=deployed())
    found = with_evaluation(found, evaluation("half"))
    planned = comparisons(found, {CandidateName("half", "torchscript"): 3})
    assert not isinstance(planned, Failure)
    baseline, evaluations, counts = planned
    assert baseline == BASELINE.evaluation
    assert evaluations == [BASELINE.evaluation, evaluation("half"), evaluation("half")]
    assert counts == [1, 3, 1]  # the bundle was not chosen, even though it has the candidate's name


def deciding(**gate: Any) -> list[bool]:
    """Whose speed decides: of a candidate that is as large as the baseline of 100 bytes, and a smaller one."""
    found = result(BASELINE, candidate("int8", size=100), candidate("half", size=40), **gate)
    return [subject.speed_decides for subject in subjects_to_time(found)[1:]]


def test_only_candidates_that_could_be_promoted_are_timed_until_they_are_decided() -> None:
    assert deciding(min_speedup=1.1) == [True, True]
    assert deciding(min_speedup=1.1, min_size_ratio=2.0) == [False, True]
    assert deciding(objective="smallest") == [False, False]
    assert deciding(objective="smallest", min_speedup=1.1) == [True, True]


def test_only_a_candidate_that_can_still_be_promoted_ends_the_timing_of_slower_candidates() -> None:
    withdrawn = deployed().model_copy(update={"withdrawn": (CandidateName("int8", "torchscript"),)})
    found = result(BASELINE, candidate("int8"), candidate("half"), current=withdrawn, min_speedup=1.1)
    assert contest_of(found.workload, subjects_to_time(found)).contenders == {"half/torchscript"}
    for gate, wins in (
        ({}, True),
        ({"min_speedup": 1.1, "min_coverage": 0.5}, True),
        ({"max_peak_rss_bytes": 1000}, False),
        ({"min_int8_time_share": 0.5}, False),
        ({"max_saturation": 0.1}, False),
        ({"objective": "smallest", "min_speedup": 1.1}, False),
    ):
        found = result(BASELINE, candidate("int8"), **gate)
        assert contest_of(found.workload, subjects_to_time(found)).fastest_wins == wins, gate
    # The current bundle is timed until it is decided, even if it has become too large for the gate.
    same = CurrentBundle(version=VERSION, candidate=candidate("int8").built, same_as="int8/torchscript")
    for ratio, wins in ((1.0, True), (2.0, False)):
        found = result(BASELINE, candidate("int8"), candidate("half", size=40), current=same, min_size_ratio=ratio)
        assert contest_of(found.workload, subjects_to_time(found)).fastest_wins == wins


def test_the_current_bundle_is_timed_with_the_candidates_and_its_twin() -> None:
    found = with_evaluation(result(BASELINE, candidate("half"), current=deployed()), evaluation("int8"))
    timed = subjects_to_time(found)
    assert [(each.key, each.twin and str(each.twin)) for each in timed] == [
        ("float/eager", None),
        ("half/torchscript", "float/torchscript"),
        ("int8/torchscript#current", "float/torchscript"),
    ]
    contest = contest_of(found.workload, timed)
    assert (contest.contenders, contest.current) == ({"half/torchscript"}, "int8/torchscript#current")


def test_a_candidate_that_is_the_current_bundle_is_timed_until_it_is_decided_whatever_the_gate_says_of_it() -> None:
    same = CurrentBundle(version=VERSION, candidate=candidate("int8").built, same_as="int8/torchscript")
    found = result(BASELINE, candidate("int8"), current=same, min_size_ratio=2.0)
    timed = subjects_to_time(found)[1]
    assert (timed.speed_decides, timed.is_current, timed.may_be_promoted) == (True, True, False)
    assert contest_of(found.workload, [timed]).current == "int8/torchscript"
    found = result(BASELINE, candidate("int8"), current=same, objective="smallest")
    assert not subjects_to_time(found)[1].is_current


@given(st.sets(st.sampled_from(["float", "int8", "half", "bundle"])))
def test_failed_candidates_are_not_timed_and_a_bundle_is_not_timed_alone(broken: set[str]) -> None:
    candidates = [failed(name) if name in broken else candidate(name) for name in ("float", "int8", "half")]
    outcome = KILLED if "bundle" in broken else evaluation("int8")
    found = with_evaluation(result(*candidates, current=deployed()), outcome)
    names = [name for name in ("float", "int8", "half") if name not in broken]
    timed = subjects_to_time(found)
    assert [each.candidate.recipe for each in timed if each.setting == "primary"] == names
    assert any(each.setting == "current" for each in timed) == (bool(names) and "bundle" not in broken)


def test_layers_are_studied_of_recipes_that_quantize_and_were_built() -> None:
    studied = recipes_to_study(result(BASELINE, failed("int8", "eager"), candidate("int8"), failed("half")))
    assert [recipe.name for recipe in studied] == ["int8"]


KEY = CandidateName("int8", "torchscript")
STAGES = ("prepare", "checkpoint", "quantize", "evaluate")
GOOD: tuple[Any, ...] = (JOB.dataset, JOB, built(KEY.recipe, KEY.runtime), evaluation(KEY.recipe, KEY.runtime))


def compared(bundle: Any = None, **outcomes: Any) -> WorkloadResult:
    """A workload with a baseline and one more candidate, of which these stages ended so."""
    result = WorkloadResult(
        workload=workload(), job=JOB, candidates=(candidate("float", "eager"), candidate("half", "torchscript"))
    )
    result = with_current(result, bundle)
    if "evaluate" in outcomes:
        result = with_evaluation(result, outcomes["evaluate"])
    return with_comparisons(result, outcomes["compare"]) if "compare" in outcomes else result


def failures(result: WorkloadResult) -> list[Failure | None]:
    return [subject.failure for subject in result.subjects()]


@given(st.sets(st.integers(0, 3)))
def test_a_candidate_fails_in_its_first_failed_stage_and_keeps_earlier_results(broken: set[int]) -> None:
    dataset, job, made, quality = (
        Failure(stage=stage, error="it is") if index in broken else good
        for index, (stage, good) in enumerate(zip(STAGES, GOOD, strict=True))
    )
    result = gathered(workload(), dataset, job, {KEY: (made, quality)})
    (found,) = result.candidates
    assert (found.failure.stage if found.failure else None) == next((STAGES[index] for index in sorted(broken)), None)
    assert [result.dataset is None, result.job is None, found.built is None, found.evaluation is None] == [
        index in broken for index in range(4)
    ]
    assert isinstance(result.current, UnknownBundle)


def test_the_fastest_float_becomes_the_baseline_of_the_workload_and_of_its_job() -> None:
    candidates = candidate("float", "eager"), candidate("float"), candidate("int8")
    result = WorkloadResult(workload=workload(), job=JOB, candidates=candidates)
    floats = floats_to_time(result)
    assert [each.key for each in floats] == ["float/torchscript"]
    for timed, why in (
        (None, "it is the only float candidate that can be deployed"),
        (KILLED, f"the others could not be timed: {KILLED.error}"),
        ((CandidateName("float", "torchscript"), "it was the fastest"), "it was the fastest"),
    ):
        found, baseline = with_baseline(result, floats, timed)
        assert (baseline.name, baseline.reason) == ("float/torchscript", why)
        assert found.job is not None
        assert found.workload.baseline_name == found.job.workload.baseline_name
        assert str(found.workload.baseline_name) == "float/torchscript"


def test_a_look_up_that_failed_leaves_the_current_bundle_unknown() -> None:
    found = compared(KILLED).current
    assert isinstance(found, UnknownBundle)
    assert KILLED.error in found.reason
    assert isinstance(gathered(workload(), JOB.dataset, KILLED, {}).current, UnknownBundle)
    assert compared(None).current is None


def test_the_current_bundle_is_measured_by_its_own_files_unless_a_candidate_has_the_same() -> None:
    bundle = compared(deployed()).bundle
    assert bundle is not None
    assert bundle.built == deployed().candidate
    assert compared(deployed().model_copy(update={"same_as": "half/torchscript"})).bundle is None
    assert compared(deployed().model_copy(update={"candidate": None, "fault": "changed"})).bundle is None


def test_the_current_bundle_is_compared_with_the_candidates_unless_its_measurement_was_killed() -> None:
    three = [difference(value) for value in (0.0, 0.1, 0.2)]
    result = compared(deployed(), evaluate=evaluation("int8"), compare=three)
    assert [one.comparison for one in result.subjects()] == three
    assert failures(result) == [None] * 3
    result = compared(deployed(), evaluate=KILLED, compare=three[:2])
    assert [one.comparison for one in result.subjects()] == [*three[:2], None]
    assert failures(result) == [None, None, KILLED]
    assert failures(compared(deployed(), evaluate=evaluation("int8"), compare=KILLED)) == [KILLED] * 3
    assert result.current == deployed()


def test_a_failed_benchmark_affects_the_current_bundle_too_and_hides_no_earlier_failure() -> None:
    failed = Failure(stage="benchmark", error="ended after 60 s")
    result = with_benchmark(compared(deployed(), evaluate=KILLED), failed)
    assert failures(result) == [failed, failed, KILLED]
    assert result.benchmark is None


@pytest.mark.parametrize("place", range(3))
def test_a_refusal_fails_one_subject_alone(place: int) -> None:
    name = ("float/eager", "half/torchscript", "half/torchscript#current")[place]
    bundle = deployed().model_copy(update={"candidate": built("half")})
    refused = BENCHMARK.model_copy(update={"refused": {name: "its output differs"}})
    expected: list[Failure | None] = [None] * 3
    expected[place] = Failure(stage="benchmark", error="its output differs")
    assert failures(with_benchmark(compared(bundle), refused)) == expected
