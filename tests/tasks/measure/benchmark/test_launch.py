"""A launch refuses what computes something else than was evaluated."""

from __future__ import annotations

import pytest
import torch

from tasks.measure.benchmark.launch import TOLERANCE, disagreement

GOLDEN = (torch.linspace(-1, 1, 12).view(3, 4), torch.arange(3))


def test_rounding_agrees_and_a_different_model_does_not() -> None:
    assert disagreement((GOLDEN[0] * (1 + TOLERANCE / 2), GOLDEN[1]), GOLDEN) == ""
    assert "output 0 differs" in disagreement((GOLDEN[0] * (1 + TOLERANCE * 2), GOLDEN[1]), GOLDEN)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("golden", [(), GOLDEN[:1]])
@pytest.mark.slow
def test_nan_and_infinities_are_refused(value: float, golden: tuple[torch.Tensor, ...]) -> None:
    assert "NaN or infinities" in disagreement((torch.full((3, 4), value),), golden)


def test_other_shapes_and_counts_are_refused() -> None:
    assert "shape [4, 3]" in disagreement((GOLDEN[0].t(), GOLDEN[1]), GOLDEN)
    assert "returns 1 outputs, but the evaluation had 2" in disagreement(GOLDEN[:1], GOLDEN)


def test_zero_golden_output_needs_zero() -> None:
    zero = (torch.zeros(3),)
    assert disagreement(zero, zero) == ""
    assert disagreement((torch.ones(3),), zero) != ""
