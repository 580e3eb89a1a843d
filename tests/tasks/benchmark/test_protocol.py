"""The protocol in real processes, on subjects whose work is known."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import MeasurementError
from storage.locks import host_lock
from tasks.benchmark.protocol import LOCK, Contest, Session
from tasks.benchmark.statistics import verdict_of
from tests.tasks.benchmark.planted import LOADER, TINY, plan

BASELINE = "float/eager"
SESSION = Session(BASELINE, TINY, loader=LOADER)


@pytest.mark.slow
def test_planted_ratio_lies_in_its_own_interval(tmp_path: Path) -> None:
    subjects = [plan(tmp_path, BASELINE, work=120), plan(tmp_path, "fast/eager", work=40)]
    with host_lock(LOCK):  # another benchmark on this processor would be measured with it
        measured = SESSION.measure(subjects)
    ratio = measured.ratio("fast/eager")
    # The loop around the products costs each product the same, so the ratio of the work is that of the times.
    assert ratio.low * 0.97 <= 3.0 <= ratio.high * 1.03
    assert 2.0 < ratio.value < 4.5


@pytest.mark.slow
def test_planted_ratio_is_recovered_from_noise_that_is_known(tmp_path: Path) -> None:
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
def test_launches_go_on_until_every_contender_is_decided_and_the_others_leave_after_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.benchmark.protocol.LOOKS", (3, 5))
    subjects = [
        plan(tmp_path, BASELINE, work=100, simulated=True),
        plan(tmp_path, "fast/eager", work=10, simulated=True),
        plan(tmp_path, "close/eager", work=90, simulated=True),
        plan(tmp_path, "large/eager", work=10, simulated=True),
    ]
    session = replace(SESSION, profile=TINY.model_copy(update={"budget_s": 600, "launches": 3}))
    clear = session.measure(subjects, Contest(frozenset({"fast/eager"}), min_speedup=1.5))
    assert len(clear.launches) == 3
    assert clear.bounds("fast/eager").low > 1.5
    assert [len(clear.of(name)) for name in (BASELINE, "fast/eager", "close/eager", "large/eager")] == [3, 3, 2, 2]
    # 100 : 90 is within what may stick to a subject of 1.11.
    contest = Contest(frozenset({"fast/eager", "close/eager"}), min_speedup=1.11)
    close = session.measure(subjects, contest)
    assert len(close.launches) == 5
    assert close.bounds("close/eager").low < 1.11 < close.bounds("close/eager").high
    # Where the fastest is promoted, it does not matter whether a much slower one would be fast enough.
    assert not contest.is_decided(close)
    assert replace(contest, fastest_wins=True).is_decided(close)
    assert not Contest(frozenset({"close/eager"}), min_speedup=1.11, fastest_wins=True).is_decided(close)


@pytest.mark.slow
def test_launches_end_with_the_budget_though_nothing_is_decided(tmp_path: Path) -> None:
    subjects = [
        plan(tmp_path, BASELINE, work=10, simulated=True),
        plan(tmp_path, "same/eager", work=10, simulated=True),
    ]
    measured = SESSION.measure(subjects, Contest(frozenset({"same/eager"}), min_speedup=1.0))
    assert len(measured.launches) == TINY.launches
    bounds = measured.bounds("same/eager")
    assert bounds.low < 1.0 < bounds.high


@pytest.mark.slow
def test_a_contender_is_compared_with_the_incumbent_in_the_same_launches(tmp_path: Path) -> None:
    subjects = [
        plan(tmp_path, BASELINE, work=100, simulated=True),
        plan(tmp_path, "new/eager", work=20, simulated=True),
        plan(tmp_path, "old/eager", work=60, simulated=True),
    ]
    contest = Contest(frozenset({"new/eager"}), incumbent="old/eager")
    measured = SESSION.measure(subjects, contest)
    ratio = measured.over_incumbent("new/eager")
    assert ratio is not None
    assert ratio.value == pytest.approx(3, rel=0.15)
    assert ratio.low < ratio.value < ratio.high
    assert measured.over_incumbent("old/eager") is None


@pytest.mark.slow
def test_disturbed_copy_makes_the_check_inconclusive(tmp_path: Path) -> None:
    measured = SESSION.measure([plan(tmp_path, BASELINE, work=40, copy_work=80)])
    aa = measured.aa_ratio()
    assert aa.value < 0.8
    assert verdict_of(aa) == "inconclusive"


@pytest.mark.slow
def test_wrong_and_broken_candidates_are_refused_and_the_others_are_timed(tmp_path: Path) -> None:
    subjects = [
        plan(tmp_path, BASELINE, work=4),
        plan(tmp_path, "wrong/eager", work=4, wrong=True),
        plan(tmp_path, "broken/eager", fails="no such operator"),
        plan(tmp_path, "good/eager", work=4),
    ]
    measured = SESSION.measure(subjects)
    assert measured.names() == [BASELINE, "good/eager", BASELINE + "#copy"]
    assert set(measured.refused) == {"wrong/eager", "broken/eager"}
    assert "differs by 0.5" in measured.refused["wrong/eager"]
    assert "RuntimeError: no such operator" in measured.refused["broken/eager"]
    assert measured.round_s("good/eager").shape == (TINY.launches, TINY.rounds)


@pytest.mark.slow
def test_wrong_baseline_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"baseline float/eager cannot be timed \(launch 1: output 0 differs"):
        SESSION.measure([plan(tmp_path, BASELINE, work=1, wrong=True)])


@pytest.mark.slow
def test_absent_baseline_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="not among the candidates"):
        SESSION.measure([plan(tmp_path, "other/eager", work=1)])


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL])
@pytest.mark.slow
def test_death_of_a_launch_names_the_signal(tmp_path: Path, how: signal.Signals) -> None:
    subjects = [plan(tmp_path, BASELINE, work=1), plan(tmp_path, "deadly/eager", dies=int(how))]
    with pytest.raises(MeasurementError, match=how.name):
        SESSION.measure(subjects)


@pytest.mark.slow
def test_cold_calls_are_timed_beside_warm_blocks_and_the_contest_says_which_decide(tmp_path: Path) -> None:
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
    assert measured.bounds("fickle/eager").low > 1.5
    assert cold.bounds("fickle/eager").high < 1.5


@pytest.mark.slow
def test_launches_go_on_for_the_caches_that_decide_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.benchmark.protocol.LOOKS", (3, 5))
    subjects = [
        plan(tmp_path, BASELINE, work=100, simulated=True),
        # With cold caches it is as fast as is asked for, which no number of launches tells from too slow.
        plan(tmp_path, "close/eager", work=10, cold_work=90, simulated=True),
    ]
    session = replace(SESSION, profile=TINY.model_copy(update={"budget_s": 600, "launches": 3}))
    by_warm = Contest(frozenset({"close/eager"}), min_speedup=1.11)
    assert len(session.measure(subjects, by_warm).launches) == 3
    assert len(session.measure(subjects, replace(by_warm, caches="cold")).launches) == 5


@pytest.mark.slow
def test_the_gains_of_runtime_and_int8_multiply_to_the_speedup_and_the_best_float_is_compared(tmp_path: Path) -> None:
    works = {BASELINE: 300, "float/openvino": 100, "float/onnxruntime": 180, "int8/openvino": 40, "int8/eager": 200}
    contest = Contest(
        contenders=frozenset({"int8/openvino", "int8/eager"}),
        min_speedup=1.05,
        twins={"int8/openvino": "float/openvino", "int8/eager": BASELINE},
        floats=frozenset({"float/openvino", "float/onnxruntime"}),
        min_over_best_float=1.0,
    )
    subjects = [plan(tmp_path, name, work=work, simulated=True) for name, work in works.items()]
    profile = TINY.model_copy(update={"budget_s": 600, "launches": 5})
    measured = replace(SESSION, profile=profile).measure(subjects, contest)
    for name in contest.contenders:
        runtime, int8 = measured.gains(name) or (None, None)
        assert runtime is not None
        assert int8 is not None
        assert runtime.value * int8.value == pytest.approx(measured.ratio(name).value)
        assert int8.low <= works[contest.twins[name]] / works[name] <= int8.high
    # The slower float leaves the launches, the faster one stays, because it is a twin and the best float.
    assert [len(measured.of(name)) for name in ("float/openvino", "float/onnxruntime")] == [5, 2]
    assert measured.best_float() == "float/openvino"
    slow, fast = (measured.over_best_float(name) for name in ("int8/eager", "int8/openvino"))
    assert slow is not None
    assert fast is not None
    assert slow.high < 1 < fast.low
    bounds = measured.over_best_float_bounds("int8/eager")
    assert bounds is not None
    assert bounds.high < 1
    assert contest.is_decided(measured)
