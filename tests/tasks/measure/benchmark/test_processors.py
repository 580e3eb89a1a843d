"""A launch runs on the quietest processors, whose caches are emptied before cold calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.environment.machine import affinity
from tasks.measure.benchmark import launch
from tasks.measure.benchmark.launch import choose_processors
from tasks.measure.benchmark.rounds import Eviction


def test_processors_are_the_highest_numbered_and_no_more_than_asked_for() -> None:
    assert choose_processors(1, [1000, 1001, 1002]) == (1002,)
    assert choose_processors(2, [1000, 1001, 1002]) == (1001, 1002)
    assert choose_processors(5, [1000, 1001]) == (1000, 1001)


def test_cores_are_shared_only_where_there_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_TOPOLOGY", tmp_path)
    for processor in range(4):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{processor % 2},{processor % 2 + 2}\n", encoding="ascii")
    assert choose_processors(2, range(4)) == (2, 3)
    assert choose_processors(3, range(4)) == (1, 2, 3)


def test_every_byte_is_written_each_time_and_the_thread_is_on_its_processors_again_afterwards() -> None:
    allowed = affinity()
    evict = Eviction(allowed, 1 << 20)
    before = evict.walked.copy()
    evict()
    assert evict.walked.nbytes == 1 << 20
    assert (evict.walked - before == len(allowed)).all()
    assert os.sched_getaffinity(0) == set(allowed)
