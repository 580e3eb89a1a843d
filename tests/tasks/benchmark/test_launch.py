"""A launch's blocks are in balanced order, and wrong outputs are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.benchmark.launch import TOLERANCE, balanced_rounds, disagreement

GOLDEN = (torch.linspace(-1, 1, 12).view(3, 4), torch.arange(3))
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


def test_equal_outputs_agree() -> None:
    assert disagreement(GOLDEN, GOLDEN) == ""


def test_rounding_agrees_and_a_different_model_does_not() -> None:
    assert disagreement((GOLDEN[0] * (1 + TOLERANCE / 2), GOLDEN[1]), GOLDEN) == ""
    assert "output 0 differs" in disagreement((GOLDEN[0] * (1 + TOLERANCE * 2), GOLDEN[1]), GOLDEN)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("golden", [(), GOLDEN[:1]])
def test_nan_and_infinities_are_refused(value: float, golden: tuple[torch.Tensor, ...]) -> None:
    assert "NaN or infinities" in disagreement((torch.full((3, 4), value),), golden)


def test_other_shapes_and_counts_are_refused() -> None:
    assert "shape [4, 3]" in disagreement((GOLDEN[0].t(), GOLDEN[1]), GOLDEN)
    assert "returns 1 outputs where 2" in disagreement(GOLDEN[:1], GOLDEN)


def test_zero_golden_output_needs_zero() -> None:
    zero = (torch.zeros(3),)
    assert disagreement(zero, zero) == ""
    assert disagreement((torch.ones(3),), zero) != ""
