"""Rank layers by quantization loss.

A layer's loss is its signal-to-quantization-noise ratio ``10 log10(sum(y^2) / sum((y - q)^2))`` dB in the converted
torch module. ``q`` is the quantized layer's output, and ``y`` is the float layer's output for the same input.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from itertools import islice

import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError
from tasks.quantize.converted import find_or_convert, open_converted
from tasks.quantize.engine import running
from tasks.quantize.graph.convert import pair_with_float
from tasks.quantize.spec import spec_of
from tasks.runtimes.build import model_source
from tasks.values.job import Job, Workspace
from tasks.values.results import LayerSensitivity
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

_BATCH_SIZE, _BATCHES = 16, 4
# Finite ratio recorded for a layer without noise, because tables do not accept infinity.
_MAX_DB = 200.0


def sensitivity(job: Job[Workload], recipe: Recipe, workspace: Workspace) -> tuple[LayerSensitivity, ...]:
    """Rank a recipe's quantized layers by loss on some calibration batches (or the example input), largest first."""
    if not recipe.quantizes:
        raise ConfigurationError(
            f'Recipe "{recipe.name}" does not quantize any modules.', hint="Choose another recipe with --recipe."
        )
    source = model_source(job, workspace)
    spec = spec_of(recipe)
    folder = find_or_convert(source, spec)
    with running(spec):
        converted = open_converted(folder)
        pairs = pair_with_float(source.float_model(), converted, spec, source.example_inputs)
        noises = {pair.path: _Noise(pair.float) for pair in pairs}
        with ExitStack() as hooks, torch.no_grad():
            for pair in pairs:
                hooks.callback(pair.quantized.register_forward_hook(noises[pair.path]).remove)
            examples = [tuple(source.example_inputs.values())]
            batches = source.calibration(_BATCH_SIZE) if source.calibration else examples
            for done, inputs in enumerate(islice(batches, _BATCHES), start=1):
                converted(*inputs)
                workspace.progress(done, _BATCHES, "batches")
    ordered = sorted(((noises[pair.path].sqnr_db, pair) for pair in pairs), key=lambda ranked: ranked[0])
    return tuple(
        LayerSensitivity(
            recipe=recipe.name, module=pair.path, type=type(pair.float).__name__, sqnr_db=sqnr_db, rank=rank
        )
        for rank, (sqnr_db, pair) in enumerate(ordered, start=1)
    )


class _Noise:
    def __init__(self, reference: nn.Module) -> None:
        self._reference = reference
        self._signal = self._noise = 0.0

    def __call__(self, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        expected = _first(self._reference(*map(_dequantized, inputs))).double()
        self._signal += float(expected.square().sum())
        self._noise += float((expected - _first(_dequantized(output)).double()).square().sum())

    @property
    def sqnr_db(self) -> float:
        ratio = self._signal / self._noise if self._noise else math.inf
        return max(-_MAX_DB, min(_MAX_DB, 10 * math.log10(ratio))) if ratio else -_MAX_DB


def _dequantized(value: object) -> object:
    if isinstance(value, tuple | list):
        return tuple(_dequantized(item) for item in value)
    return value.dequantize() if isinstance(value, Tensor) and value.is_quantized else value


def _first(output: object) -> Tensor:
    while isinstance(output, tuple | list):
        output = output[0]
    assert isinstance(output, Tensor)
    return output
