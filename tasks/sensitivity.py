"""Which layers lose most by quantization, and what keeping the worst of them float gives back.

The measure is the signal to quantization noise ratio of a layer's output, ``10 log10(sum(y^2) / sum((y - q)^2))`` in
dB, where ``y`` is what the float layer gives for the same input that the quantized layer ``q`` got. So a layer is
charged with its own noise alone, not with what the layers before it passed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.progress import Progress, silent
from tasks.refs import CheckpointRef, DatasetRef, Frozen, LayerSensitivity, QuantizedRef
from tasks.workload.recipe import DynamicRecipe, FloatRecipe, Recipe
from tasks.workload.workload import Workload

_BATCH_SIZE, _BATCHES = 16, 4
# A layer without any noise has an infinite ratio, which no table takes.
_MAX_DB = 200.0
_STUDIED = (1, 2, 4)


class KeepEffect(Frozen):
    """Quality and size with the worst ``kept`` layers float."""

    kept: int
    modules: tuple[str, ...]
    quality_metric: str
    quality: float
    float_quality: float
    higher_is_better: bool
    size_bytes: int


def sensitivity(
    workload: Workload,
    recipe: Recipe,
    dataset: DatasetRef,
    checkpoint: CheckpointRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> tuple[LayerSensitivity, ...]:
    """Rank a recipe's quantized layers, the one that loses most first.

    One pass over some calibration images (the example input where the data are not images); only two sums per layer
    are kept. For ``qat`` the noise includes what training changed in the weights.

    Raises
    ------
    ConfigurationError
        The recipe does not quantize.
    QuantizationError
        The recipe cannot be carried out.
    """
    from tasks.checkpoint import load_state
    from tasks.models import build, example_inputs
    from tasks.quantize import load, quantize, quantized_engine
    from tasks.quantize.counterparts import pairs

    if isinstance(recipe, FloatRecipe):
        raise ConfigurationError(f'Recipe "{recipe.name}" does not quantize.', hint="Name one that does with --recipe.")
    quantized = quantize(workload, recipe, dataset, checkpoint, store, progress)
    model = build(workload.model, dataset)
    model.load_state_dict(load_state(checkpoint, store))
    examples = example_inputs(workload, dataset, store)
    with quantized_engine(recipe.engine):
        # Loaded under another engine it could come wrapped, and its modules under other paths.
        converted = load(store.path(quantized.kind, quantized.digest), "eager")
        found = pairs(model.eval(), converted, recipe, quantized.flow, examples)
        noises = {pair.path: _Noise(pair.float) for pair in found}
        with ExitStack() as hooks, torch.no_grad():
            for pair in found:
                hooks.callback(pair.quantized.register_forward_hook(noises[pair.path]).remove)
            for done, inputs in enumerate(_inputs(workload, dataset, store), start=1):
                converted(*inputs)
                progress(done, _BATCHES, "batches")
    ordered = sorted(found, key=lambda pair: noises[pair.path].sqnr_db)
    return tuple(
        LayerSensitivity(
            recipe=recipe.name,
            module=pair.path,
            type=type(pair.float).__name__,
            sqnr_db=noises[pair.path].sqnr_db,
            rank=rank,
        )
        for rank, pair in enumerate(ordered, start=1)
    )


def keep_effects(
    workload: Workload,
    recipe: Recipe,
    ranking: Sequence[LayerSensitivity],
    counts: Sequence[int],
    dataset: DatasetRef,
    checkpoint: CheckpointRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> tuple[KeepEffect, ...]:
    """Quantize anew with the worst layers float, and evaluate.

    Parameters
    ----------
    ranking
        What `sensitivity` gave.
    counts
        How many of its first layers to keep float, one entry per result; those above its length are left out.
    """
    from tasks.evaluate import evaluate
    from tasks.quantize import quantize

    as_it_is = FloatRecipe(name="float", method="none")
    baseline = quantize(workload, as_it_is, dataset, checkpoint, store)
    of_float = evaluate(workload, baseline, "eager", dataset, store)
    effects = []
    for done, count in enumerate(counts, start=1):
        if count > len(ranking):
            continue
        worst = tuple(layer.module for layer in ranking[:count])
        quantized, evaluation = baseline, of_float  # which is what keeping every layer float gives
        if count < len(ranking) or not _is_all(worst, quantize(workload, recipe, dataset, checkpoint, store)):
            quantized = quantize(workload, _excluding(recipe, ranking, count), dataset, checkpoint, store)
            evaluation = evaluate(workload, quantized, "eager", dataset, store)
        effects.append(
            KeepEffect(
                kept=count,
                modules=worst,
                quality_metric=evaluation.quality_metric,
                quality=evaluation.quality,
                float_quality=of_float.quality,
                higher_is_better=evaluation.higher_is_better,
                size_bytes=quantized.size_bytes["eager"],
            )
        )
        progress(done, len(counts), "settings")
    return tuple(effects)


def _excluding(recipe: Recipe, ranking: Sequence[LayerSensitivity], count: int) -> Recipe:
    """The recipe with the first `count` layers kept float."""
    changes: dict[str, Any] = {"exclude": (*recipe.exclude, *(layer.module for layer in ranking[:count]))}
    if isinstance(recipe, DynamicRecipe) and not any(layer.type == "Embedding" for layer in ranking[count:]):
        # A recipe that names a width for embeddings must find one to quantize.
        changes["embedding_bits"] = None
    return recipe.model_copy(update=changes)


def _is_all(worst: Sequence[str], quantized: QuantizedRef) -> bool:
    """Whether nothing is quantized besides the modules `worst`, which are all that have a rank."""
    # A batch norm without a rank was folded into a layer that has one.
    return all(row.module in worst or row.type.startswith("BatchNorm") for row in quantized.coverage if row.quantized)


def study(
    workload: Workload,
    recipe: Recipe,
    dataset: DatasetRef,
    checkpoint: CheckpointRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> tuple[LayerSensitivity, ...]:
    """Rank a recipe's layers and evaluate with the worst 1, 2 and 4 kept float: what a full night records.

    Raises
    ------
    ConfigurationError, QuantizationError
        As for `sensitivity`.
    """
    ranking = sensitivity(workload, recipe, dataset, checkpoint, store, progress)
    effects = keep_effects(workload, recipe, ranking, _STUDIED, dataset, checkpoint, store, progress)
    quality = {effect.kept: effect.quality for effect in effects}
    return tuple(layer.model_copy(update={"kept_float_quality": quality.get(layer.rank)}) for layer in ranking)


class _Noise:
    """A forward hook that adds up signal and noise of one layer."""

    def __init__(self, reference: nn.Module) -> None:
        self._reference = reference
        self._signal = self._noise = 0.0

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        expected = _first(self._reference(*_dequantized(inputs))).double()
        self._signal += float(expected.square().sum())
        self._noise += float((expected - _first(_dequantized(output)).double()).square().sum())

    @property
    def sqnr_db(self) -> float:
        if self._noise == 0:
            return _MAX_DB
        ratio = self._signal / self._noise
        return max(-_MAX_DB, min(_MAX_DB, 10 * math.log10(ratio))) if ratio > 0 else -_MAX_DB


def _dequantized(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_dequantized(item) for item in value)
    return value.dequantize() if isinstance(value, Tensor) and value.is_quantized else value


def _first(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def _inputs(workload: Workload, dataset: DatasetRef, store: ArtifactStore) -> Iterator[tuple[Tensor, ...]]:
    if workload.purpose == "image-classification":
        from tasks.domains.image_classification.images import load_images

        split = load_images(dataset, "calibration", store)
        for images, _ in islice(split.batches(_BATCH_SIZE), _BATCHES):
            yield (images,)
        return
    from tasks.models import example_inputs

    yield tuple(example_inputs(workload, dataset, store).values())
