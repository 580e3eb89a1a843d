"""What is published, and what the outcome of packaging makes of the decisions."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.pointer import Pointer, Switch, by_run
from tasks.publish.package import BundleRef, Outcome, content_of
from tasks.run.publication import Publication, decide, provenance
from tasks.values.results import CandidateResult, CurrentBundle, Failure, RunInfo, UnknownBundle, WorkloadResult
from tests.storage.bundle_files import version
from tests.tasks.decide.test_gate import row, workload
from tests.tasks.run.given import JOB
from tests.tasks.run.given import candidate as evaluated

RUN = RunInfo(run_id="r2", night=dt.date(2026, 11, 22), profile="quick")
INT8, HALF, FLOAT = "int8/torchscript", "half/torchscript", "float/torchscript"
FIRST, SECOND = version(1), version(2)


def candidate(name: str) -> CandidateResult:
    recipe, _, runtime = name.partition("/")
    return evaluated(recipe, runtime, digest=hashlib.sha256(name.encode()).hexdigest())


CANDIDATES = tuple(candidate(name) for name in (INT8, HALF, FLOAT))
NEW = [row(INT8)]
# The current bundle's own files were timed with a challenger that is twice as fast.
FASTER = [row(INT8, setting="current"), row(HALF, over_current=2.0, over_current_low=1.9)]
# Tonight's candidate is the current bundle to the byte, and nothing is faster.
SAME = [row(INT8), row(HALF, over_current=0.6, over_current_low=0.5)]


def pointer(current: str = FIRST, by: str = "run r1", withdrawn: Sequence[str] = ()) -> Pointer:
    at = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
    switch = Switch(action="promote", version=current, sha256sums="", at=at, by=by, reason="fastest")
    return Pointer(
        workload="demo", version=current, sha256sums="", withdrawn=tuple(withdrawn), history=(switch,), serial=1
    )


def result(current: CurrentBundle | UnknownBundle | None) -> WorkloadResult:
    return WorkloadResult(workload=workload(), job=JOB, candidates=CANDIDATES, current=current)


def examined(**changes: Any) -> CurrentBundle:
    return CurrentBundle(version=FIRST, **changes)


def bundle(current: str, outcome: Outcome = "published") -> BundleRef:
    return BundleRef(workload="demo", version=current, location="", sha256sums="", outcome=outcome)


def decided(publication: Publication) -> dict[str, str]:
    return {str(each.name): each.decision for each in publication.judgement.decisions}


def stays(publication: Publication) -> bool | None:
    assert publication.judgement.current is not None
    return publication.judgement.current.stays


def test_a_first_winner_is_current_and_a_faster_one_replaces_it() -> None:
    first = decide(result(None), NEW, None)
    assert (first.replacing, decided(first)) == ("", {INT8: "promote"})
    done = first.packaged(bundle(FIRST))
    assert (done.version, done.problem, done.renews) == (FIRST, "", False)
    second = decide(result(examined()), FASTER, pointer())
    assert (second.replacing, decided(second)) == (FIRST, {HALF: "promote"})
    done = second.packaged(bundle(SECOND))
    assert (done.version, done.problem, done.renews, stays(done)) == (SECOND, "", False, False)


def test_the_winner_is_packaged_with_its_own_files_and_every_row() -> None:
    found = result(examined())
    winner = decide(found, FASTER, pointer()).judgement.promoted
    assert winner is not None
    made = provenance(found, winner, FASTER, RUN)
    assert (made.candidate, made.evaluation) == (CANDIDATES[1].built, CANDIDATES[1].evaluation)
    assert (made.decision, made.measurements, made.run_id) == (winner, FASTER, "r2")
    with pytest.raises(RuntimeError, match="report this bug"):
        provenance(found.model_copy(update={"job": None}), winner, FASTER, RUN)


KILLED = row(INT8, setting="current", status="failed", stage="evaluate", error="its process was killed")


@pytest.mark.parametrize(
    ("found", "rows", "why", "renews"),
    [
        (
            UnknownBundle(reason="find current: ended after 60 s"),
            FASTER,
            "find current: ended after 60 s",
            False,
        ),
        (examined(), [KILLED, *FASTER[1:]], "evaluate: its process was killed", True),
    ],
)
def test_an_unknown_current_bundle_is_not_replaced_and_the_run_reports_it(
    found: CurrentBundle | UnknownBundle, rows: list[dict[str, Any]], why: str, renews: bool
) -> None:
    done = decide(result(found), rows, pointer())
    assert (done.version, decided(done), stays(done)) == (FIRST, {HALF: "hold"}, True)
    assert done.problem == f"the current bundle is unknown, so nothing was promoted: {why}"
    assert done.renews == renews


def test_an_unreadable_pointer_is_not_taken_for_a_missing_pointer() -> None:
    done = decide(result(examined()), FASTER, Failure(stage="publish", error="current.json is damaged"))
    assert (done.version, stays(done), done.renews) == ("", None, False)
    assert "current.json is damaged" in done.problem
    assert decided(done) == {HALF: "hold"}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (pointer(SECOND, by="someone"), f"someone switched from {FIRST} to {SECOND}"),
        (None, f"from {FIRST} to no bundle"),
    ],
)
def test_a_bundle_that_a_person_made_current_during_the_night_stays(now: Pointer | None, said: str) -> None:
    done = decide(result(examined()), FASTER, now)
    assert done.version == (now.version if now else "")
    assert (decided(done), done.renews) == ({HALF: "hold"}, False)
    assert f"{said} while the night ran" in done.problem


def test_a_winner_that_cannot_be_packaged_replaces_nothing_and_the_current_bundle_is_renewed() -> None:
    done = decide(result(examined()), FASTER, pointer()).not_packaged("the model differs by 1", pointer(), RUN)
    assert (done.version, decided(done), stays(done), done.renews) == (FIRST, {HALF: "hold"}, True, True)
    why = f"{HALF} was chosen, but its bundle could not be built: the model differs by 1; {FIRST} stays current"
    assert done.problem == why
    first = decide(result(None), NEW, None).not_packaged("the model differs by 1", None, RUN)
    assert (first.version, decided(first), first.renews) == ("", {INT8: "hold"}, False)


def test_a_switch_whose_answer_was_lost_has_happened() -> None:
    now = pointer(SECOND, by=by_run(RUN.run_id))
    done = decide(result(examined()), FASTER, pointer()).not_packaged("the connection was closed", now, RUN)
    assert (done.version, decided(done), stays(done), done.renews) == (SECOND, {HALF: "promote"}, False, False)
    assert done.problem == f"{SECOND} is current, but a later step failed: the connection was closed"


def test_content_that_somebody_rolled_back_from_is_excluded_and_the_runner_up_wins() -> None:
    faster = row(INT8, speedup=9.0, over_current=2.0, over_current_low=1.9)
    rows = [row(HALF, setting="current"), faster]
    assert CANDIDATES[0].built is not None
    withdrawn = pointer(withdrawn=[f"2026-11-20-{content_of(JOB, CANDIDATES[0].built)}"])
    alone = decide(result(examined()), rows, withdrawn)
    assert (alone.version, stays(alone), decided(alone), alone.renews) == (FIRST, True, {INT8: "pass"}, True)
    runner_up = row(FLOAT, over_current=1.2, over_current_low=1.1)
    assert decided(decide(result(examined()), [*rows, runner_up], withdrawn)) == {INT8: "pass", FLOAT: "promote"}


def test_a_roll_back_while_the_winner_was_packaged_is_respected() -> None:
    done = decide(result(examined()), FASTER, pointer()).packaged(bundle(FIRST, "withdrawn"))
    assert (done.version, decided(done), stays(done), done.problem) == (FIRST, {HALF: "hold"}, True, "")


@pytest.mark.parametrize(("rows", "same_as"), [(SAME, INT8), ([row(INT8, setting="current"), *SAME[1:]], None)])
def test_a_bundle_that_stays_is_renewed_whether_or_not_tonights_candidate_has_the_same_files(
    rows: list[dict[str, Any]], same_as: str | None
) -> None:
    done = decide(result(examined(same_as=same_as)), rows, pointer())
    if done.judgement.promoted:  # packaging signs again
        done = done.packaged(bundle(FIRST, "kept"))
        assert not done.renews
    else:
        assert done.renews
    assert (done.version, done.problem, stays(done)) == (FIRST, "", True)


def test_content_that_the_key_did_not_sign_is_packaged_again_and_recorded_as_replaced() -> None:
    done = decide(result(examined(same_as=INT8)), SAME, pointer()).packaged(bundle(SECOND))
    assert (done.version, stays(done)) == (SECOND, False)
    assert done.judgement.current is not None
    assert "packaged again" in done.judgement.current.reason


@given(
    st.sampled_from([NEW, SAME, FASTER]),
    st.sampled_from([None, pointer(), pointer(SECOND, by="someone"), pointer(SECOND, by=by_run("r2"))]),
    st.booleans(),
)
def test_the_recorded_current_bundle_comes_from_the_pointer(
    rows: list[dict[str, Any]], now: Pointer | None, packaged: bool
) -> None:
    done = decide(result(examined()), rows, pointer())
    if done.judgement.promoted is None:
        return
    current = now.version if now else ""
    done = done.packaged(bundle(current)) if packaged else done.not_packaged("it is late", now, RUN)
    assert done.version == current
    assert bool(done.problem) != packaged
    assert done.judgement.current is None or done.judgement.current.stays == (current == FIRST)
    assert not done.renews or current == FIRST


def test_a_problem_is_reported_once() -> None:
    done = decide(result(None), NEW, None).with_problem("it is late").with_problem("it is late")
    assert done.problem == "it is late"
    assert done.with_problem("the key is gone").problem == "it is late; the key is gone"
