"""Quantize one model from Python, without a workload file and without a store."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.data.sections import BATCH
from tasks.data.user_data import forward_parameters
from tasks.quantize.engine import running, without_deprecations
from tasks.quantize.source import ModelSource, converter_of, without_parametrizations
from tasks.quantize.spec import spec_of
from tasks.runtimes.base import runtime_named
from tasks.values.job import Workspace
from tasks.values.refs import Architecture, DatasetRef
from tasks.workload.recipe import RUNTIMES, Recipe

Inputs = Sequence[Tensor]


def quantize(
    model: nn.Module,
    recipe: Mapping[str, object],
    examples: Inputs,
    *,
    runtime: str = RUNTIMES.default,
    target: Path | str = "",
    calibration: Sequence[Inputs] = (),
) -> nn.Module | Path:
    """Quantize a float model as a night would, and return the quantized module or a folder of files.

    Parameters
    ----------
    model
        Float model in any mode; it is copied, and the copy is put into evaluation mode.
    recipe
        Keys of a ``[[recipe]]`` section, such as ``{"method": "static"}``; ``name`` is optional.
    examples
        Inputs of one call, in the order of ``forward``'s parameters. The first axis of each is the batch.
    runtime
        The default for a torch module, or a runtime that exports the model and writes files.
    target
        New folder for the files; required for a runtime that writes files.
    calibration
        Inputs of further calls with real data, for static activation ranges (default: only `examples`).

    Returns
    -------
    torch.nn.Module or pathlib.Path
        The module, to be called with the engine of the recipe (`torch.backends.quantized.engine`), or `target`.

    Raises
    ------
    ConfigurationError
        If the recipe is invalid, the runtime does not support it, or the method needs training.
    QuantizationError
        If the model cannot be quantized.
    """
    parsed = Recipe.model_validate({"name": "given", **recipe, "runtimes": [runtime]})
    spec, chosen = spec_of(parsed), runtime_named(runtime)
    chosen.require_installed(runtime)
    traces = chosen.hands_over and chosen.runs_engine
    if spec.training is not None or traces or (chosen.hands_over and not target):
        raise ConfigurationError(
            "quantize() cannot train or trace, and needs a target for files.",
            hint='Use another method, trace the module of the default runtime yourself, or pass target="FOLDER".',
        )
    names = forward_parameters(model)[: len(examples)]
    with TemporaryDirectory(prefix="nightquant-") as scratch:
        source = ModelSource(
            name="given",
            float_model=lambda: without_parametrizations(copy.deepcopy(model).eval()),
            example_inputs=dict(zip(names, examples, strict=True)),
            axes={name: {0: BATCH} for name in names},
            architecture=Architecture(domain="custom", model={}, folder="", dataset=_NO_DATA),
            made_from={},
            workspace=Workspace(ArtifactStore(scratch)),
            calibration=partial(_batches, (tuple(examples), *map(tuple, calibration))),
        )
        if chosen.hands_over:
            folder = Path(target)
            folder.mkdir(parents=True)
            chosen.maker().make(source, spec, folder)
            return folder
        with running(spec), without_deprecations():
            return converter_of(spec).convert(source.float_model(), spec, source).model


_NO_DATA = DatasetRef(kind="given", digest="", splits={})


def _batches(calls: Sequence[tuple[Tensor, ...]], batch_size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the rows of all calls in batches of at most `batch_size` rows."""
    parts = (chain.from_iterable(tensor.split(batch_size) for tensor in column) for column in zip(*calls, strict=True))
    yield from zip(*parts, strict=True)
