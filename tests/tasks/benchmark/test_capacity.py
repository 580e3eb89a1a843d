"""Capacity on planted subjects, in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from storage.locks import host_lock
from tasks.benchmark.capacity import ratios_of, splits_of
from tasks.benchmark.capacity_messages import CapacityReport, CapacitySpec, Served, Split
from tasks.benchmark.child import Limit, run_child
from tasks.benchmark.messages import ChildSpec, Subject
from tasks.benchmark.protocol import LOCK
from tests.tasks.benchmark.capacity_probe import Seen
from tests.tasks.benchmark.planted import LOADER, plan

ONE = Split(processes=1, threads=1, batch_size=1)


def spec(*subjects: Subject, scenario: str = "offline", budget_s: float = 0.0, bound_s: float = 0.0) -> CapacitySpec:
    return CapacitySpec.model_validate(
        {
            "subjects": subjects, "loader": LOADER, "threads": 1, "scenario": scenario, "splits": (ONE,),
            "request_rows": 1, "bound_s": bound_s, "budget_s": budget_s, "seed": 1, "spawned_at": 0.0,
        }
    )  # fmt: skip


def measure(asked: CapacitySpec) -> CapacityReport:
    with host_lock(LOCK):
        asked = asked.model_copy(
            update={"spawned_at": time.monotonic()}
        )  # waiting for another benchmark is not counted
        return run_child("tasks.benchmark.capacity_child", asked, CapacityReport, Limit(300))


def test_splits_keep_all_processors_busy_unless_the_workload_says_otherwise() -> None:
    found = [(split.processes, split.threads, split.batch_size) for split in splits_of(6, (), (), (1, 8))]
    assert found == [(6, 1, 1), (6, 1, 8), (3, 2, 1), (3, 2, 8), (1, 4, 1), (1, 4, 8)]
    assert [str(split) for split in splits_of(6, (2,), (1, 3, 4), (1,))] == [
        "1 process × 2 threads, batch 1",
        "3 processes × 2 threads, batch 1",
    ]
    assert splits_of(2, (4,), (), (1,)) == ()


def test_a_ratio_is_of_pairs_and_noise_that_both_have_in_common_does_not_widen_it() -> None:
    host = [(1.0, 1.1), (0.5, 0.6), (0.8, 0.7), (1.2, 1.1)]
    served = {
        name: Served(split=ONE, rps=tuple((speed * first, speed * second) for first, second in host))
        for name, speed in (("float/eager", 100.0), ("int8/eager", 150.0))
    }
    ratio = ratios_of(served, "float/eager")["int8/eager"]
    assert ratio.value == pytest.approx(1.5)
    assert ratio.high / ratio.low == pytest.approx(1.0)


@pytest.mark.slow
def test_planted_speeds_are_found_offline_and_what_fails_costs_itself_alone(tmp_path: Path) -> None:
    report = measure(
        spec(
            plan(tmp_path, "float/eager", work=90),
            plan(tmp_path, "fast/eager", work=30),
            plan(tmp_path, "wrong/eager", work=1, wrong=True),
            budget_s=15.0,
        )
    )
    assert set(report.subjects) == {"float/eager", "fast/eager"}
    assert "differs by" in report.refused["wrong/eager"]
    ratio = ratios_of(report.subjects, "float/eager")["fast/eager"]
    assert ratio.low * 0.9 <= 3.0 <= ratio.high * 1.1
    assert len(report.subjects["float/eager"].rps) >= 3


@pytest.mark.slow
def test_with_too_little_time_the_last_subjects_are_left_out_with_the_reason(tmp_path: Path) -> None:
    subjects = [plan(tmp_path, f"{name}/eager", work=9) for name in ("float", "better", "worse")]
    report = measure(spec(*subjects))
    assert set(report.subjects) == {"float/eager", "better/eager"}
    assert report.refused == {"worse/eager": "budget_s = 0 is sufficient for 2 of 3 models"}


@pytest.mark.slow
def test_without_the_baseline_no_candidate_has_a_capacity(tmp_path: Path) -> None:
    report = measure(spec(plan(tmp_path, "float/eager", fails="no such file"), plan(tmp_path, "fast/eager", work=3)))
    assert report.subjects == {}
    assert set(report.refused) == {"float/eager", "fast/eager"}
    assert "no such file" in report.refused["fast/eager"]


@pytest.mark.slow
def test_a_bound_that_no_call_meets_is_the_reason_and_a_generous_one_gives_a_rate(tmp_path: Path) -> None:
    # A worker that misses a bound of minutes would be a defect, whatever else the host does.
    subject = plan(tmp_path, "float/eager", work=90)
    served = measure(spec(subject, scenario="server", bound_s=300.0)).subjects["float/eager"]
    assert served.requests == 3 * len(served.rps[0]) * (served.requests // 3)
    assert served.p50_s is not None
    assert min(min(rounds) for rounds in served.rps) > 0
    report = measure(spec(subject, scenario="server", bound_s=1e-7))
    assert "No request rate meets latency_bound_ms = 0.0001" in report.refused["float/eager"]


@pytest.mark.slow
def test_queueing_counts_and_a_worker_that_fails_is_named(tmp_path: Path) -> None:
    asked = ChildSpec(
        subjects=(
            plan(tmp_path, "slow/eager", work=4000),
            plan(tmp_path, "broken/eager", fails="no such operator"),
            plan(tmp_path, "deadly/eager", dies=int(signal.SIGKILL)),
        ),
        loader=LOADER,
        threads=1,
    )
    seen = run_child("tests.tasks.benchmark.capacity_probe", asked, Seen, Limit(300))
    assert "RuntimeError: no such operator" in seen.errors["broken/eager"]
    assert "A worker process was killed by SIGKILL." in seen.errors["deadly/eager"]
    assert seen.sent == len(seen.latency_s) == 10
    # All requests came at once, so the last one waited for nine others; the generator did not wait for any.
    assert list(seen.latency_s) == sorted(seen.latency_s)
    assert seen.latency_s[-1] > 3 * seen.latency_s[0]
    assert seen.left == ()


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    asked = ChildSpec(subjects=(plan(tmp_path, "float/eager", work=1),), loader=LOADER, threads=2)
    (tmp_path / "spec.json").write_text(asked.model_dump_json(), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("spec.json", "out.json")]
    command = [sys.executable, "-m", "tasks.benchmark.child", "tests.tasks.benchmark.capacity_probe", *files]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        (worker,) = map(int, child.stdout.readline().split())
        child.wait(60)
    deadline = time.monotonic() + 60
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
