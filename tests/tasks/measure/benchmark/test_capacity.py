"""Capacity on planted subjects in real processes, the search for the highest rate, and the generator's own limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import MeasurementError
from storage.locks import host_lock
from tasks.measure.benchmark.capacity import CapacityReport, CapacitySpec, Served, ratios_of
from tasks.measure.benchmark.capacity_child import Fleet, Window, generator_limit, highest_rate
from tasks.measure.benchmark.child import Limit, run_child
from tasks.measure.benchmark.messages import Subject
from tasks.measure.benchmark.protocol import LOCK
from tests.tasks.measure.benchmark.planted import LOADER, plan


def spec(*subjects: Subject, budget_s: float = 0.0, bound_s: float = 0.0) -> CapacitySpec:
    return CapacitySpec(subjects=subjects, loader=LOADER, threads=1, processes=1, bound_s=bound_s, budget_s=budget_s)


def measure(asked: CapacitySpec) -> CapacityReport:
    with host_lock(LOCK):
        return run_child("tasks.measure.benchmark.capacity_child", asked, CapacityReport, Limit(300))


def window(*latency_s: float) -> Window:
    return Window(1.0, np.array(latency_s), np.zeros(len(latency_s)), 0.0)


def test_a_ratio_is_of_pairs_and_noise_that_both_have_in_common_does_not_widen_it() -> None:
    host = np.array([1.0, 0.5, 0.8, 1.2])
    served = {name: Served(rps=tuple(rps * host)) for name, rps in (("float/eager", 100.0), ("int8/eager", 150.0))}
    ratio = ratios_of(served, "float/eager")["int8/eager"]
    assert ratio.value == pytest.approx(1.5)
    assert ratio.high / ratio.low == pytest.approx(1.0)


@given(st.floats(0.02, 1.0), st.floats(10, 1e6))
def test_the_highest_rate_that_passes_is_found(true: float, ceiling: float) -> None:
    tried: list[float] = []

    def attempt(rate: float) -> Window:
        tried.append(rate)
        return window(1.0, 1.0 if rate <= true * ceiling else 3.0)

    rate, _ = highest_rate(attempt, 2.0, ceiling)
    assert true * ceiling / 1.02 <= rate <= true * ceiling * (1 + 1e-9)
    assert max(tried) <= ceiling
    assert len(tried) <= 24


@pytest.mark.parametrize(("fastest_s", "most"), [(1.0, 14), (2.5, 2)], ids=["some answers", "no answer"])
def test_a_subject_without_a_rate_is_left_at_once_if_no_answer_is_in_time(fastest_s: float, most: int) -> None:
    tried: list[float] = []

    def attempt(rate: float) -> Window:
        tried.append(rate)
        return window(fastest_s, 3.0)

    with pytest.raises(MeasurementError, match="No request rate meets latency_bound_ms = 2000"):
        highest_rate(attempt, 2.0, 100.0)
    assert len(tried) <= most


@pytest.mark.parametrize(("late", "is_within"), [(9, True), (11, False)])
def test_a_rate_passes_if_one_request_in_a_hundred_is_late(late: int, is_within: bool) -> None:
    tested = window(*[9.0] * late, *[1.0] * (1000 - late))
    if is_within:
        assert highest_rate(lambda _: tested, 1.0, 100.0)[0] > 98
    else:
        with pytest.raises(MeasurementError):
            highest_rate(lambda _: tested, 1.0, 100.0)


@pytest.mark.parametrize(
    ("late_s", "busy", "said"),
    [(0.0009, 0.5, ""), (0.0011, 0.5, "1.1 ms late"), (0.0009, 0.81, "busy 81% of the time")],
)
def test_a_generator_is_the_limit_if_it_is_late_or_busy(late_s: float, busy: float, said: str) -> None:
    limit = generator_limit(np.full(100, late_s), busy, 0.01)
    assert bool(limit) == bool(said)
    assert said in limit


def test_queueing_counts_because_no_request_waits_for_an_answer() -> None:
    taken, queue = os.pipe()
    finished_s = np.zeros(10)

    def work() -> list[float]:
        while (number := int.from_bytes(os.read(taken, 8), sys.byteorder, signed=True)) >= 0:
            time.sleep(0.01)
            finished_s[number] = time.monotonic()
        return [100.0]

    fleet = Fleet({}, queue, finished_s)
    worker: dict[Any, Any] = {None: SimpleNamespace(send=lambda _: None)}
    fleet.workers, fleet.answers = worker, work  # type: ignore[method-assign]
    served = fleet.serve(np.full(10, 1e-4))
    os.close(taken)
    os.close(queue)
    assert list(served.latency_s) == sorted(served.latency_s)
    assert served.latency_s[-1] > 9 * 0.01
    assert (served.lag_s >= 0).all()


@pytest.mark.long
@pytest.mark.slow
def test_planted_speeds_are_found_and_a_failing_candidate_affects_no_other(tmp_path: Path) -> None:
    report = measure(
        spec(
            plan(tmp_path, "float/eager", work=90),
            plan(tmp_path, "fast/eager", work=30),
            plan(tmp_path, "wrong/eager", work=1, wrong=True),
            plan(tmp_path, "broken/eager", fails="no such operator"),
            plan(tmp_path, "deadly/eager", dies=int(signal.SIGKILL)),
            budget_s=10.0,
        )
    )
    assert set(report.subjects) == {"float/eager", "fast/eager"}
    assert "differs by" in report.refused["wrong/eager"]
    assert "RuntimeError: no such operator" in report.refused["broken/eager"]
    assert "A worker process was killed by SIGKILL." in report.refused["deadly/eager"]
    ratio = ratios_of(report.subjects, "float/eager")["fast/eager"]
    assert ratio.low * 0.9 <= 3.0 <= ratio.high * 1.1
    assert len(report.subjects["float/eager"].rps) >= 3


@pytest.mark.slow
def test_with_too_little_time_the_last_subjects_are_left_out_with_the_reason(tmp_path: Path) -> None:
    report = measure(spec(*(plan(tmp_path, f"{name}/eager", work=9) for name in ("float", "better", "worse"))))
    assert set(report.subjects) == {"float/eager", "better/eager"}
    assert report.refused == {"worse/eager": "budget_s = 0 is not sufficient for 3 models"}


@pytest.mark.slow
def test_a_generous_bound_gives_a_rate_with_percentiles(tmp_path: Path) -> None:
    # A worker that misses a bound of minutes would be a defect, whatever else the host does.
    served = measure(spec(plan(tmp_path, "float/eager", work=90), bound_s=300.0)).subjects["float/eager"]
    assert min(served.rps) > 0
    assert served.percentiles.keys() >= {"capacity_p50_s"}


@pytest.mark.slow
def test_without_the_baseline_no_candidate_has_a_capacity(tmp_path: Path) -> None:
    report = measure(spec(plan(tmp_path, "float/eager", fails="no such file"), plan(tmp_path, "fast/eager", work=3)))
    assert report.subjects == {}
    assert "no such file" in report.refused["float/eager"]
    assert report.refused["fast/eager"].startswith("the baseline's capacity is unknown: ")


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    asked = spec(plan(tmp_path, "float/eager", waits=str(tmp_path / "fifo")))
    (tmp_path / "spec.json").write_text(asked.model_dump_json(), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("spec.json", "out.json")]
    command = [sys.executable, "-m", "tasks.measure.benchmark.child", "tasks.measure.benchmark.capacity_child", *files]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child, (tmp_path / "fifo").open() as fifo:
        fifo.readline()
        child.kill()
        assert fifo.read() == "", "the FIFO ends with the worker"
