"""What is evaluated, compared and timed, and whose speed decides."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasks.measure.benchmark.stage import contest_of
from tasks.run.outcomes import with_current, with_evaluation
from tasks.run.plan import bundle_to_evaluate, comparisons, recipes_to_study, subjects_to_time
from tasks.values.results import CandidateResult, Failure, Incumbent, WorkloadResult
from tests.tasks.decide.test_gate import workload
from tests.tasks.run.given import JOB, KILLED, VERSION, candidate, deployed, evaluation

BASELINE = candidate("float", "eager")


def result(*candidates: CandidateResult, current: Incumbent | None = None, **gate: Any) -> WorkloadResult:
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
    planned = comparisons(found, {("half", "torchscript"): 3})
    assert not isinstance(planned, Failure)
    baseline, evaluations, counts = planned
    assert baseline == BASELINE.evaluation
    assert evaluations == [BASELINE.evaluation, evaluation("half"), evaluation("half")]
    assert counts == [1, 3, 1]  # the bundle was not chosen, even though it has the candidate's name


def deciding(**gate: Any) -> list[bool]:
    """Whose speed decides: of a candidate that is as large as the baseline of 100 bytes, and a smaller one."""
    found = result(BASELINE, candidate("int8", size=100), candidate("half", size=40), **gate)
    return [subject.speed_decides for subject in subjects_to_time(found)[1:]]


def test_only_what_could_be_promoted_is_timed_until_it_is_decided() -> None:
    assert deciding(min_speedup=1.1) == [True, True]
    assert deciding(min_speedup=1.1, min_size_ratio=2.0) == [False, True]
    assert deciding(objective="smallest") == [False, False]
    assert deciding(objective="smallest", min_speedup=1.1) == [True, True]


def test_the_current_bundle_is_timed_beside_the_candidates_with_its_twin() -> None:
    found = with_evaluation(result(BASELINE, candidate("half"), current=deployed()), evaluation("int8"))
    timed = subjects_to_time(found)
    assert [(each.name, each.is_bundle, each.twin) for each in timed] == [
        ("float/eager", False, ""),
        ("half/torchscript", False, "float/torchscript"),
        ("int8/torchscript#incumbent", True, "float/torchscript"),
    ]
    contest = contest_of(found.workload, timed)
    assert (contest.contenders, contest.incumbent) == ({"half/torchscript"}, "int8/torchscript#incumbent")


def test_a_candidate_that_is_the_current_bundle_is_timed_until_it_is_decided_whatever_the_gate_says_of_it() -> None:
    same = Incumbent(version=VERSION, candidate=candidate("int8").built, same_as="int8/torchscript")
    found = result(BASELINE, candidate("int8"), current=same, min_size_ratio=2.0)
    timed = subjects_to_time(found)[1]
    assert (timed.speed_decides, timed.is_current, timed.may_be_promoted) == (True, True, False)
    assert contest_of(found.workload, [timed]).incumbent == "int8/torchscript"
    found = result(BASELINE, candidate("int8"), current=same, objective="smallest")
    assert not subjects_to_time(found)[1].is_current


@given(st.sets(st.sampled_from(["float", "int8", "half", "bundle"])))
def test_what_failed_is_not_timed_and_a_bundle_is_not_timed_alone(broken: set[str]) -> None:
    candidates = [failed(name) if name in broken else candidate(name) for name in ("float", "int8", "half")]
    outcome = KILLED if "bundle" in broken else evaluation("int8")
    found = with_evaluation(result(*candidates, current=deployed()), outcome)
    names = [name for name in ("float", "int8", "half") if name not in broken]
    timed = subjects_to_time(found)
    assert [each.candidate.recipe for each in timed if not each.is_bundle] == names
    assert any(each.is_bundle for each in timed) == (bool(names) and "bundle" not in broken)


def test_layers_are_studied_of_recipes_that_quantize_and_were_built() -> None:
    studied = recipes_to_study(result(BASELINE, failed("int8", "eager"), candidate("int8"), failed("half")))
    assert [recipe.name for recipe in studied] == ["int8"]
