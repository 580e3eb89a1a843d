"""Emptying the caches: sizes as the system reports them, and a buffer that is walked whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.benchmark import caches
from tasks.benchmark.caches import MOST_BYTES, Eviction, cache_bytes
from tasks.machine import affinity


def reported(folder: Path, *levels: tuple[int, str, str]) -> None:
    for index, (level, kind, size) in enumerate(levels):
        place = folder / "cpu0" / "cache" / f"index{index}"
        place.mkdir(parents=True)
        for name, value in (("level", str(level)), ("type", kind), ("size", size)):
            (place / name).write_text(f"{value}\n", encoding="ascii")


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(caches, "_PROCESSORS", tmp_path)
    return tmp_path


def test_sizes_are_those_of_data_caches_by_level(topology: Path) -> None:
    reported(topology, (1, "Data", "48K"), (1, "Instruction", "64K"), (2, "Unified", "2048K"), (3, "Unified", "30M"))
    assert cache_bytes(0) == {1: 48 << 10, 2: 2 << 20, 3: 30 << 20}


@pytest.mark.parametrize(
    ("levels", "size"),
    [
        ([(1, "Data", "32K"), (2, "Unified", "1M"), (3, "Unified", "8M")], 2 * ((32 << 10) + (9 << 20))),
        ([(2, "Unified", "2M"), (3, "Unified", "480M")], MOST_BYTES),
        ([], MOST_BYTES),
    ],
)
@pytest.mark.slow
def test_twice_what_caches_hold_is_walked_and_never_more_than_the_most(
    topology: Path, levels: list[tuple[int, str, str]], size: int
) -> None:
    reported(topology, *levels)
    assert Eviction((0,)).walked.nbytes == size


def test_every_byte_is_read_and_written_each_time() -> None:
    evict = Eviction((), 1 << 20)
    before = evict.walked.copy()
    evict()
    assert evict.walked.nbytes == 1 << 20
    assert (evict.walked - before == 1).all()


@pytest.mark.skipif(len(affinity()) < 2, reason="needs two processors")
@pytest.mark.slow
def test_the_thread_is_on_its_processors_again_afterwards() -> None:
    allowed = affinity()
    evict = Eviction(allowed, 1 << 20)
    evict()
    assert os.sched_getaffinity(0) == set(allowed)
