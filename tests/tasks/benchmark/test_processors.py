"""A launch runs on the quietest processors, and whoever uses more threads than it may is refused."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.benchmark import launch
from tasks.benchmark.launch import choose_processors, excess, threads_used
from tasks.benchmark.protocol import Session
from tasks.benchmark.rounds import Eviction
from tasks.machine import affinity
from tests.tasks.benchmark.planted import LOADER, TINY, digest, plan

BASELINE = "float/eager"


def test_processors_are_the_highest_numbered_and_no_more_than_asked_for() -> None:
    assert choose_processors(1, [1000, 1001, 1002]) == (1002,)
    assert choose_processors(2, [1000, 1001, 1002]) == (1001, 1002)
    assert choose_processors(5, [1000, 1001]) == (1000, 1001)


@pytest.mark.slow
def test_cores_are_shared_only_where_there_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_TOPOLOGY", tmp_path)
    for processor in range(4):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{processor % 2},{processor % 2 + 2}\n", encoding="ascii")
    assert choose_processors(2, range(4)) == (2, 3)
    assert choose_processors(3, range(4)) == (1, 2, 3)


@pytest.mark.slow
def test_threads_that_wait_for_a_processor_count_like_those_that_run() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        with ThreadPoolExecutor(3) as pool:
            used = threads_used(lambda: list(pool.map(lambda _: digest(2_000), range(3))), 1)
    finally:
        os.sched_setaffinity(0, allowed)
    assert excess(used, 1)  # which seconds of one processor alone could never show


@pytest.mark.slow
def test_a_subject_that_uses_two_threads_where_one_is_allowed_is_refused(tmp_path: Path) -> None:
    subjects = [plan(tmp_path, BASELINE, work=20), plan(tmp_path, "greedy/eager", work=10, threads=2)]
    measured = Session(BASELINE, TINY, loader=LOADER).measure(subjects)
    assert measured.names() == [BASELINE, f"{BASELINE}#copy"]
    assert "threads, but the workload allows 1" in measured.refused["greedy/eager"]


@pytest.mark.slow
def test_a_subject_that_uses_as_many_threads_as_are_allowed_is_timed(tmp_path: Path) -> None:
    # Enough work that the thread which hands it out, and may wait for a processor, hardly counts.
    subjects = [plan(tmp_path, BASELINE, work=20), plan(tmp_path, "greedy/eager", work=100, threads=2)]
    measured = Session(BASELINE, TINY, threads=2, loader=LOADER).measure(subjects)
    assert measured.refused == {}
    assert 1.1 < max(report.threads_used for report in measured.of("greedy/eager")) < 2.2


def test_every_byte_is_written_each_time_and_the_thread_is_on_its_processors_again_afterwards() -> None:
    allowed = affinity()
    evict = Eviction(allowed, 1 << 20)
    before = evict.walked.copy()
    evict()
    assert evict.walked.nbytes == 1 << 20
    assert (evict.walked - before == len(allowed)).all()
    assert os.sched_getaffinity(0) == set(allowed)
