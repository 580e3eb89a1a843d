"""The small built-in models that ``nightquant doctor`` times: one linear layer, float and int8."""

from __future__ import annotations

from functools import partial

import torch

from tasks.benchmark.loading import Loaded
from tasks.benchmark.messages import Subject

ROWS, WIDTH = 4, 1024
FLOAT, INT8 = "float/eager", "int8/eager"


def load(subject: Subject) -> Loaded:
    """Make the layer that the subject's name asks for, with seeded weights, bound to its input."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    weight = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    if subject.name == INT8:
        return Loaded(partial(_int8_linear, _pack(weight), inputs))
    return Loaded(partial(torch.nn.functional.linear, inputs, weight))


def _pack(weight: torch.Tensor) -> torch.ScriptObject:
    scale = float(weight.abs().max()) / 127
    quantized = torch.quantize_per_tensor(weight, scale, 0, torch.qint8)
    packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, None)
    return packed


def _int8_linear(packed: torch.ScriptObject, inputs: torch.Tensor) -> torch.Tensor:
    # `reduce_range` keeps activations to 7 bits: without VNNI, 8 bits can overflow 16-bit sums.
    result: torch.Tensor = torch.ops.quantized.linear_dynamic(inputs, packed, True)
    return result
