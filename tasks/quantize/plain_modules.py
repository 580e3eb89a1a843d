"""Wrappers of float models: images channels last, and another dtype inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tasks.outputs import tensors_of


class ChannelsLast(nn.Module):
    """A model whose weights and image inputs (four axes) lie in memory with the channels last."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # torch's stubs know the keyword for tensors only.
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
        """Call the model with its floating-point inputs in its dtype, and give its outputs as float32."""
        cast = (item.to(self.dtype) if item.is_floating_point() else item for item in inputs)
        return tuple(item.float() if item.is_floating_point() else item for item in tensors_of(self.model(*cast)))
