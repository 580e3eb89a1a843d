"""Borders between float and quantized values, put around a model or around one of its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.ao.quantization import DeQuantStub, QuantStub


class QuantizedInside(nn.Module):
    """A model whose floating-point inputs are quantized and whose outputs are dequantized.

    Parameters
    ----------
    module
        The model without stubs; called with the same positional tensors.
    example_inputs
        One tensor per argument; integer ones pass the border as they are.
    """

    def __init__(self, module: nn.Module, example_inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        # One stub per argument, for each has a range of its own.
        self.quants = nn.ModuleList(
            QuantStub() if tensor.is_floating_point() else nn.Identity() for tensor in example_inputs
        )
        self.module = module
        self.dequant = DeQuantStub()

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Call the model between the borders."""
        quantized = [quant(tensor) for quant, tensor in zip(self.quants, inputs, strict=True)]
        return _each(self.dequant, self.module(*quantized))


class FloatInside(nn.Module):
    """A module that stays float within a quantized model: dequantize, compute, quantize again."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.dequant = DeQuantStub()
        self.module = module
        self.quant = QuantStub()

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module on dequantized inputs."""
        values = (self.dequant(value) if isinstance(value, torch.Tensor) else value for value in inputs)
        return _each(self.quant, self.module(*values, **options))


def remove_stubs(model: nn.Module) -> None:
    """Put an Identity in the place of every quant and dequant stub."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantStub | DeQuantStub):
                setattr(parent, name, nn.Identity())


def replace_module(model: nn.Module, path: str, new: nn.Module) -> None:
    """Put `new` where the module `path` is."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new)


def _each(border: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
    if isinstance(output, tuple | list):
        return tuple(_each(border, item) for item in output)
    if isinstance(output, torch.Tensor) and (output.is_quantized or output.is_floating_point()):
        return border(output)
    return output
