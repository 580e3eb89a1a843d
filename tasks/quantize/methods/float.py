"""Method ``none``: the float model as it is, in one memory format or the other, with oneDNN or without."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class _Switch:
    """oneDNN's switch, one setting for the whole process: off while any thread needs it off, then as it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = True

    @contextmanager
    def off(self) -> Iterator[None]:
        switch = cast(Any, torch.backends.mkldnn)
        with self._lock:
            if not self._holders:
                self._before = switch.enabled
                switch.enabled = False
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    switch.enabled = self._before


_SWITCH = _Switch()


class WithoutOneDnn(nn.Module):
    """A model that is called with oneDNN switched off, whatever the process has it set to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        """Call the model on torch's own kernels."""
        with _SWITCH.off():
            return self.model(*inputs)


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
