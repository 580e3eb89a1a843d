"""Wrap float models, for images with the channels last and for computing in another dtype."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tasks.outputs import tensors_of
from tasks.quantize.base import Converted, Converter
from tasks.quantize.coverage import cover, leaves_of
from tasks.quantize.engine import require_bfloat16
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec


class ChannelsLast(nn.Module):
    """A model whose weights and image inputs (four axes) have the channels last in memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # torch's type stubs have this keyword only for tensors.
        self.model: nn.Module = model.to(memory_format=torch.channels_last)

    def forward(self, *inputs: Tensor) -> object:
        """Call the model with the inputs in its memory format."""
        return self.model(
            *(item.contiguous(memory_format=torch.channels_last) if item.dim() == 4 else item for item in inputs)
        )


class Cast(nn.Module):
    """A model that computes in `dtype`; its inputs and outputs are float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model: nn.Module = model.to(dtype)
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Call the model with floating-point inputs in its dtype, and return float32 outputs."""
        cast = (item.to(self.dtype) if item.is_floating_point() else item for item in inputs)
        return tuple(item.float() if item.is_floating_point() else item for item in tensors_of(self.model(*cast)))


class PlainConverter(Converter):
    """Converts float models to a spec's type and memory format."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Wrap the model.

        Raises
        ------
        UnavailableError
            The processor has no instructions for bfloat16, and emulation would be far slower than float.
        """
        if spec.arithmetic == "bfloat16":
            require_bfloat16(spec.recipe.name)
        coverage = cover(leaves_of(model), lambda _: spec.why_float)
        return Converted(self.skeleton(model, spec, "", source.example_inputs), "", coverage)

    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Wrap the model if it computes in another type, or its inputs need another memory format."""
        if spec.arithmetic != "float32":
            model = Cast(model, getattr(torch, spec.arithmetic))
        return ChannelsLast(model) if spec.memory_format == "channels-last" else model
