from __future__ import annotations

import pytest
import torch
from torch import nn

from tasks.checkpoint.blank import build_blank


class StochasticDepth(nn.Module):
    """Asks for values while it is built, which a tensor on the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.linspace(0, 0.1, 4).tolist()
        self.fc = nn.Linear(3, 2)


def test_a_model_is_built_without_memory_for_its_weights() -> None:
    assert build_blank(lambda: nn.Linear(3, 2)).weight.is_meta


def test_a_constructor_that_asks_for_values_is_built_all_the_same_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    model = build_blank(StochasticDepth)
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == {
        "fc.weight": (2, 3),
        "fc.bias": (2,),
    }
    assert torch.equal(torch.get_rng_state(), before)


def test_a_constructor_that_fails_anywhere_fails_with_its_own_error() -> None:
    def broken() -> nn.Module:
        raise ValueError("no such size")

    with pytest.raises(ValueError, match="no such size"):
        build_blank(broken)
