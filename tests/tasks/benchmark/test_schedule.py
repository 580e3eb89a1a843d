"""The order of blocks is balanced, random and repeatable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.benchmark.schedule import balanced_rounds

NAMES = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)


@given(NAMES, st.integers(1, 12), st.integers())
def test_every_round_times_every_subject_once(names: list[str], rounds: int, seed: int) -> None:
    order = balanced_rounds(names, rounds, seed)
    assert len(order) == rounds
    assert all(sorted(one) == sorted(names) for one in order)


@given(NAMES, st.integers(1, 6), st.integers())
def test_pairs_of_rounds_are_mirror_images(names: list[str], pairs: int, seed: int) -> None:
    order = balanced_rounds(names, 2 * pairs, seed)
    flat = [name for one in order for name in one]
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
