"""A memory format for images that float convolutions are often faster in."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
