"""Wrap float models so that they use the channels-last memory format or compute in another dtype."""

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
    """A model that uses the channels-last memory format for its weights and for images (inputs with four axes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # Declare the type, because torch's type stubs accept `memory_format` only for tensors.
        self.model: nn.Module = model.to(memory_format=torch.channels_last)

    def forward(self, *inputs: Tensor) -> object:
        """Convert images to the channels-last memory format, and call the model."""
        return self.model(
            *(item.contiguous(memory_format=torch.channels_last) if item.dim() == 4 else item for item in inputs)
        )


class Cast(nn.Module):
    """A model that computes in `dtype`, with float32 inputs and outputs."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model: nn.Module = model.to(dtype)
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Cast floating-point inputs to `dtype`, call the model, and return float32 outputs."""
        cast = (item.to(self.dtype) if item.is_floating_point() else item for item in inputs)
        return tuple(item.float() if item.is_floating_point() else item for item in tensors_of(self.model(*cast)))


class PlainConverter(Converter):
    """A converter that gives float models a spec's dtype and memory format."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Wrap the model; raise `UnavailableError` if the processor can only emulate bfloat16."""
        if spec.arithmetic == "bfloat16":
            require_bfloat16(spec.recipe.name)
        coverage = cover(leaves_of(model), lambda _: spec.why_float)
        return Converted(self.skeleton(model, spec, source.example_inputs), coverage)

    def skeleton(self, model: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Wrap the model if the spec requires the channels-last memory format, or a dtype other than float32."""
        if spec.arithmetic != "float32":
            model = Cast(model, getattr(torch, spec.arithmetic))
        return ChannelsLast(model) if spec.memory_format == "channels-last" else model
