"""The protocol in real processes, on subjects whose work is known."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from storage.errors import MeasurementError
from tasks.environment.machine import available_cores
from tasks.measure.benchmark import protocol
from tasks.measure.benchmark.contest import Contest, Measured
from tasks.measure.benchmark.messages import LaunchReport, Subject, SubjectReport
from tasks.measure.benchmark.protocol import Session
from tasks.measure.benchmark.statistics import Ratio
from tasks.workload.recipe import CandidateName
from tests.tasks.measure.benchmark.planted import LOADER, TINY, plan

BASELINE = "float/eager"
SESSION = Session(CandidateName.parse(BASELINE), TINY, loader=LOADER)


@pytest.mark.slow
def test_a_planted_ratio_is_recovered_from_planted_noise(tmp_path: Path) -> None:
    subjects = [
        plan(tmp_path, BASELINE, work=120, simulated=True),
        plan(tmp_path, "fast/eager", work=40, simulated=True),
    ]
    # Two launches leave one degree of freedom, whose interval nothing can miss.
    measured = replace(SESSION, profile=TINY.model_copy(update={"launches": 5})).measure(subjects)
    ratio = measured.ratio("fast/eager")
    assert ratio.low <= 3.0 <= ratio.high
    assert ratio.high / ratio.low < 1.3
    aa = measured.aa_ratio()
    assert aa.low <= 1.0 <= aa.high


@pytest.mark.slow
def test_two_launches_of_several_subjects_give_a_moderated_interval(tmp_path: Path) -> None:
    works = {BASELINE: 120, "fast/eager": 40, "close/eager": 110, "slow/eager": 240}
    measured = SESSION.measure([plan(tmp_path, name, work=work, simulated=True) for name, work in works.items()])
    assert len(measured.launches) == 2
    for name in ("fast/eager", "close/eager", "slow/eager"):
        ratio = measured.moderated(name)
        assert ratio.low <= 120 / works[name] <= ratio.high
        assert ratio.value == measured.ratio(name).value
        assert ratio.high / ratio.low < 1.5


@pytest.mark.slow
def test_launches_go_on_until_every_contender_is_decided_and_the_others_leave_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.measure.benchmark.protocol.CHECKED_AT", (3, 5))
    subjects = [
        plan(tmp_path, BASELINE, work=100, simulated=True),
        plan(tmp_path, "fast/eager", work=10, simulated=True),
        plan(tmp_path, "close/eager", work=90, simulated=True),
        plan(tmp_path, "large/eager", work=10, simulated=True),
        plan(tmp_path, "slow/eager", work=200, simulated=True),
    ]
    session = replace(SESSION, profile=TINY.model_copy(update={"budget_s": 600, "launches": 3}))
    clear = session.measure(subjects, Contest(frozenset({"fast/eager"}), min_speedup=1.5))
    assert len(clear.launches) == 3
    assert clear.bounds("fast/eager").low > 1.5
    assert [len(clear.of(name)) for name in (BASELINE, "fast/eager", "close/eager", "large/eager")] == [3, 3, 2, 2]
    # A contender that is known to be too slow leaves at the first look.
    # 100 : 90 is within what may stick to a subject of 1.11.
    contest = Contest(frozenset({"fast/eager", "close/eager", "slow/eager"}), min_speedup=1.11)
    close = session.measure(subjects, contest)
    assert len(close.launches) == 5
    assert [len(close.of(name)) for name in ("fast/eager", "close/eager", "slow/eager")] == [5, 5, 3]
    assert close.bounds("close/eager").low < 1.11 < close.bounds("close/eager").high
    # Where the fastest is promoted, it does not matter whether a much slower one would be fast enough.
    assert not contest.is_decided(close)
    assert replace(contest, fastest_wins=True).is_decided(close)
    assert not Contest(frozenset({"close/eager"}), min_speedup=1.11, fastest_wins=True).is_decided(close)


def test_without_contenders_and_copy_one_launch_orders_the_floats(tmp_path: Path) -> None:
    works = {BASELINE: 60, "float/openvino": 30, "float/onnxruntime": 90}
    session = replace(SESSION, profile=TINY.model_copy(update={"launches": 1}))
    subjects = [plan(tmp_path, name, work=work, simulated=True) for name, work in works.items()]
    measured = session.measure(subjects, Contest(floats=frozenset(works)), with_copy=False)
    assert len(measured.launches) == 1
    assert measured.best_float() == "float/openvino"
    over = measured.over_best_float("float/onnxruntime")
    assert over is not None
    assert over.value == pytest.approx(1 / 3, rel=0.15)


@pytest.mark.slow
def test_a_contender_is_compared_with_the_current_bundle_in_the_same_launches(tmp_path: Path) -> None:
    subjects = [
        plan(tmp_path, BASELINE, work=100, simulated=True),
        plan(tmp_path, "new/eager", work=20, simulated=True),
        plan(tmp_path, "old/eager", work=60, simulated=True),
    ]
    contest = Contest(frozenset({"new/eager"}), current="old/eager")
    measured = SESSION.measure(subjects, contest)
    ratio = measured.over_current("new/eager")
    assert ratio is not None
    assert ratio.value == pytest.approx(3, rel=0.15)
    assert ratio.low < ratio.value < ratio.high
    assert measured.over_current("old/eager") is None


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_two_launches_load_together_if_there_is_memory_and_are_timed_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    if together and available_cores() < 2:
        pytest.skip("two launches need two processors")
    monkeypatch.setattr(protocol, "available_memory", lambda: 1 << (40 if together else 20))
    diary = tmp_path / "diary"
    SESSION.measure([plan(tmp_path, BASELINE, work=1, diary=str(diary))])
    processes = diary.read_text(encoding="ascii").splitlines()
    if together:
        # The baseline and its copy are called once each while they are loaded.
        assert sorted(Counter(processes[:4]).values()) == [2, 2]
        processes = processes[4:]
    assert len(list(groupby(processes))) == TINY.launches == len(set(processes))


@pytest.mark.slow
def test_wrong_and_broken_candidates_are_refused_and_the_others_are_timed(tmp_path: Path) -> None:
    subjects = [
        plan(tmp_path, BASELINE, work=4),
        plan(tmp_path, "wrong/eager", work=4, wrong=True),
        plan(tmp_path, "broken/eager", fails="no such operator"),
        plan(tmp_path, "good/eager", work=4),
    ]
    measured = SESSION.measure(subjects)
    assert measured.names() == [BASELINE, "good/eager", SESSION.baseline.key("a/a")]
    assert set(measured.refused) == {"wrong/eager", "broken/eager"}
    assert "differs by 0.5" in measured.refused["wrong/eager"]
    assert "RuntimeError: no such operator" in measured.refused["broken/eager"]
    assert measured.round_s("good/eager").shape == (TINY.launches, TINY.rounds)


@pytest.mark.parametrize(
    ("name", "details", "reason"),
    [
        (BASELINE, {"wrong": True}, r"baseline float/eager cannot be timed \(launch 1: output 0 differs"),
        ("other/eager", {}, "not among the candidates"),
        (BASELINE, {"dies": int(signal.SIGSEGV)}, "SIGSEGV"),
    ],
)
@pytest.mark.slow
def test_a_baseline_that_cannot_be_timed_is_an_error(
    tmp_path: Path, name: str, details: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MeasurementError, match=reason):
        SESSION.measure([plan(tmp_path, name, work=1, **details)])


@pytest.mark.slow
def test_cold_calls_are_timed_in_addition_to_warm_blocks_and_the_contest_selects_the_deciding_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_COLD_SHARE", {"warm": 100.0})  # time for all cold rounds, even on a busy host
    # Called in a loop it is five times as fast, called now and then half as fast as the baseline.
    subjects = [
        plan(tmp_path, BASELINE, work=100, cold_work=200, simulated=True),
        plan(tmp_path, "fickle/eager", work=20, cold_work=400, simulated=True),
    ]
    session = replace(SESSION, profile=TINY.model_copy(update={"budget_s": 600, "launches": 3}))
    contest = Contest(frozenset({"fickle/eager"}), min_speedup=1.5)
    measured = session.measure(subjects, contest)
    cold = measured.with_caches("cold")
    assert measured.ratio("fickle/eager").value == pytest.approx(5, rel=0.15)
    assert cold.ratio("fickle/eager").value == pytest.approx(0.5, rel=0.15)
    assert cold.round_s(BASELINE).shape == (3, TINY.cold_rounds)
    assert contest.is_decided(measured)
    assert replace(contest, caches="cold").is_decided(measured)
    assert measured.bounds("fickle/eager").low > 1.5
    assert cold.bounds("fickle/eager").high < 1.5


def taken(**seconds: float) -> LaunchReport:
    """A launch in which every subject takes the same time in each round."""
    reports = {
        name: SubjectReport(load_s=0, first_call_s=0, calls_per_block=1, round_s=(x,) * 4, single_s=(), cold_s=(x,) * 4)
        for name, x in seconds.items()
    }
    return LaunchReport(subjects=reports, refused={}, modules=())


def measured_in(launches: list[LaunchReport], contest: Contest) -> Measured:
    copy = Subject(name=CandidateName.parse(BASELINE), setting="a/a")
    subjects = (*(Subject(name=CandidateName.parse(key)) for key in launches[0].subjects if key != copy.key), copy)
    return Measured(BASELINE, copy.key, subjects, 1, tuple(launches), {}, contest)


def test_a_contender_that_left_early_is_compared_in_the_launches_that_timed_it() -> None:
    seconds = {BASELINE: 1.0, f"{BASELINE}#a/a": 1.0, "old/eager": 0.4}
    contenders = frozenset({"old/eager", "slow/eager"})
    contest = Contest(contenders, min_speedup=1.0, current="old/eager", floats=contenders | {BASELINE})
    launches = [taken(**seconds, **{"slow/eager": 0.8})] * 3 + [taken(**seconds)] * 2
    measured = measured_in(launches, contest)
    for caches in ("warm", "cold"):
        found = measured.with_caches(caches)
        over = found.over_current("slow/eager")
        assert over is not None
        assert over.value == pytest.approx(0.5)
        assert found.ratio("slow/eager").value == pytest.approx(1.25)
        assert found.bounds("slow/eager").value == pytest.approx(1.25)
        assert found.over_best_float("slow/eager") is not None


def test_candidates_that_are_decided_leave_their_part_of_the_error_to_the_others() -> None:
    floats = {BASELINE: 3.0, f"{BASELINE}#a/a": 3.0, "float/openvino": 0.8}

    def gain(contest: Contest, **int8: float) -> Ratio:
        times = [floats | {name: x * seconds for name, seconds in int8.items()} for x in (0.98, 1.01, 1.0, 1.02, 0.99)]
        bounds = measured_in([taken(**seconds) for seconds in times], contest).over_best_float_bounds("close/eager")
        assert bounds is not None
        return bounds

    names = ("close/eager", "fast/eager", "slow/eager")
    contest = Contest(
        frozenset(names), 1.05, twins=dict.fromkeys(names, BASELINE),
        floats=frozenset({"float/openvino"}), min_over_best_float=1.0,
    )  # fmt: skip
    alone = replace(contest, contenders=frozenset({"close/eager"}), min_speedup=None)
    assert (contest.comparisons, alone.comparisons) == (6, 1)
    # Of three speed-ups and three gains over the best float, only the gain of 0.8 : 0.79 is undecided.
    seconds = {"close/eager": 0.79, "fast/eager": 0.3, "slow/eager": 9.0}
    one, three = gain(contest, **seconds), gain(contest, **dict.fromkeys(names, 0.79))
    assert one == gain(alone, **seconds)
    assert three.low < one.low < 1 < one.high < three.high


def test_a_contender_that_is_decidedly_slower_than_one_that_passes_cannot_win() -> None:
    # The contenders have the same noise, so that they are told apart better than either is from the baseline.
    noise = (0.96, 1.04, 1.0, 1.02, 0.98)
    seconds = {BASELINE: 1.0, f"{BASELINE}#a/a": 1.0}
    launches = [taken(**seconds, **{"first/eager": x / 1.6, "second/eager": x / 1.35}) for x in noise]
    contest = Contest(frozenset({"first/eager", "second/eager"}), min_speedup=1.25, fastest_wins=True)
    measured = measured_in(launches, contest)
    second, first = measured.bounds("second/eager"), measured.bounds("first/eager")
    assert second.low < 1.25 <= first.low < second.high
    assert measured.over("second/eager", "first/eager").high < 1
    assert contest.is_decided(measured)
    assert contest.needed(measured) == {"first/eager"}
    # A contender that would have to pass as well stays.
    both = replace(contest, fastest_wins=False)
    assert not both.is_decided(measured)
    assert both.needed(measured) == {"first/eager", "second/eager"}
