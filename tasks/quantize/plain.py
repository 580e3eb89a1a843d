"""Method ``none``: the float model as it is, in one memory format or the other, with oneDNN or without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from tasks.quantize.base import Context, Converted
from tasks.quantize.coverage import cover, leaves_of
from tasks.workload.recipe import FloatRecipe, Recipe


class ChannelsLast(nn.Module):
    """A model whose weights and image inputs (four axes) lie in memory with the channels last."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # torch's stubs take the keyword for tensors of four axes only; it leaves the others as they are.
        self.model = cast(Any, model).to(memory_format=torch.channels_last)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the model with the inputs in its memory format."""
        return self.model(
            *(item.contiguous(memory_format=torch.channels_last) if item.dim() == 4 else item for item in inputs)
        )


class WithoutOneDnn(nn.Module):
    """A model that is called with oneDNN switched off, whatever the process has it set to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        """Call the model on torch's own kernels."""
        switch = cast(Any, torch.backends.mkldnn)
        before = switch.enabled
        switch.enabled = False
        try:
            return self.model(*inputs)
        finally:
            switch.enabled = before


class Plain:
    """Leaves every module float."""

    def convert(self, model: nn.Module, recipe: Recipe, context: Context) -> Converted:
        """Bring the model into the recipe's memory format, and switch oneDNN off where it says so."""
        coverage = cover(leaves_of(model), quantized=(), reasons={}, otherwise="a float recipe")
        return Converted(self.skeleton(model, recipe, "", context.example_inputs), "", coverage)

    def skeleton(self, model: nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """The model itself, wrapped for what the recipe asks."""
        del flow, example_inputs
        asked = cast(FloatRecipe, recipe)
        formatted = ChannelsLast(model) if asked.memory_format == "channels-last" else model
        return formatted if asked.onednn else WithoutOneDnn(formatted)
