"""The order of a launch's blocks is balanced, random and repeatable; its processors are the quietest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.benchmark import launch
from tasks.benchmark.launch import balanced_rounds, choose_processors

NAMES = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)


@given(NAMES, st.integers(1, 12), st.integers())
def test_every_round_times_every_subject_once(names: list[str], rounds: int, seed: int) -> None:
    order = balanced_rounds(names, rounds, seed)
    assert len(order) == rounds
    assert all(sorted(names_of_round) == sorted(names) for names_of_round in order)


@given(NAMES, st.integers(1, 6), st.integers())
def test_pairs_of_rounds_are_mirror_images(names: list[str], pairs: int, seed: int) -> None:
    order = balanced_rounds(names, 2 * pairs, seed)
    flat = [name for names_of_round in order for name in names_of_round]
    for name in names:
        positions = [index for index, found in enumerate(flat) if found == name]
        # Equal mean positions: a linear drift favours nobody.
        assert sum(positions) / len(positions) == (len(flat) - 1) / 2


@given(NAMES, st.integers())
def test_equal_seeds_give_equal_orders(names: list[str], seed: int) -> None:
    assert balanced_rounds(names, 6, seed) == balanced_rounds(names, 6, seed)


def test_launches_differ() -> None:
    names = list("abcdef")
    assert len({tuple(balanced_rounds(names, 4, seed)) for seed in range(10)}) == 10


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
    assert launch.choose_processors(2, range(4)) == (2, 3)
    assert launch.choose_processors(3, range(4)) == (1, 2, 3)
