"""A model's modules may convert the keys of older checkpoints; whatever torch loads is loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torchvision.models import mnasnet0_5

from tasks.data.weights import StateDict
from tasks.domains.checkpoint import load_into


class Renamed(nn.Module):
    """`head` was called ``fc``; a hook of the module renames it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_load_state_dict_pre_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
        for key in [key for key in state if key.startswith(f"{prefix}fc.")]:
            state[f"{prefix}head.{key.rpartition('.')[2]}"] = state.pop(key)


class Versioned(nn.Linear):
    """Since version 2, the weight is stored transposed."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].T
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def normed(norm: Callable[..., nn.Module]) -> nn.Sequential:
    return nn.Sequential(norm(nn.Conv1d(2, 4, 3)), nn.ReLU(), norm(nn.Conv1d(4, 2, 3)))


def older(model: nn.Module) -> dict[str, Tensor]:
    return {key.replace("head.", "fc."): tensor for key, tensor in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("prefix", ["", "module."])
def test_weight_norm_becomes_a_parametrization(prefix: str) -> None:
    old = normed(nn.utils.weight_norm)
    tensors, _ = load_into(
        {prefix + key: tensor for key, tensor in old.state_dict().items()},
        lambda: normed(parametrizations.weight_norm),
    )
    new = normed(parametrizations.weight_norm)
    new.load_state_dict(tensors)
    rows = torch.randn(2, 2, 9)
    torch.testing.assert_close(new(rows), old(rows))


def test_a_models_own_hook_renames_keys() -> None:
    state = older(Renamed())
    random = torch.random.get_rng_state()
    tensors, _ = load_into(state, Renamed)
    assert torch.equal(tensors["head.weight"], state["fc.weight"])
    assert torch.equal(torch.random.get_rng_state(), random)
    assert tensors.keys() == Renamed().state_dict().keys()


@pytest.mark.parametrize(("version", "transposed"), [(1, True), (2, False)])
def test_the_versions_in_the_file_decide_about_conversions(version: int, transposed: bool) -> None:
    weight = torch.arange(9.0).view(3, 3)
    state = StateDict({"layer.weight": weight, "layer.bias": torch.zeros(3)})
    state._metadata = {"layer": {"version": version}}  # type: ignore[attr-defined]
    tensors, _ = load_into(state, lambda: nn.Sequential(OrderedDict(layer=Versioned(3, 3))))
    assert torch.equal(tensors["layer.weight"], weight.T if transposed else weight)


def test_a_file_without_versions_whose_keys_fit_has_the_current_layout() -> None:
    """MNASNet refuses a state dict without versions."""
    assert load_into(dict(mnasnet0_5().state_dict()), mnasnet0_5)[1] == ()
