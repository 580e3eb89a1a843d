"""Cross-entropy loss of a word language model on the test split, exactly in sequence or in parallel segments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from storage.errors import InputError, MeasurementError
from tasks.domains.language_model.stream import exact_losses, segment_losses
from tasks.evaluate.outputs import flat_outputs, write_outputs
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef, Evaluation, QuantizedRef
from tasks.workload.model import WordLanguageModelSpec

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.workload.recipe import Runtime
    from tasks.workload.workload import Evaluate, Workload

_BLOCK_TOKENS = 100


def evaluate_language_model(
    workload: Workload,
    quantized: QuantizedRef,
    runtime: Runtime,
    dataset: DatasetRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> Evaluation:
    """Loss and perplexity of a candidate on the whole test split.

    ``samples.safetensors`` holds ``quality``: contributions of consecutive blocks of words, whose mean is the loss.
    Neighbouring words share their context, so blocks, not words, are what a bootstrap may draw.

    Raises
    ------
    MeasurementError
        The loss is NaN or infinite.
    """
    from tasks.domains.language_model.corpus import load_ids
    from tasks.models import example_inputs
    from tasks.quantize import load

    model = load(store.path(quantized.kind, quantized.digest), runtime)
    ids = load_ids(dataset, "test", store)
    spec = cast(WordLanguageModelSpec, workload.model)
    losses = word_losses(model, ids, spec, workload.evaluate, progress)
    loss = losses.mean(dtype=torch.float64).item()
    if not math.isfinite(loss):
        raise MeasurementError(
            f'Recipe "{quantized.recipe}" ({runtime}) of workload "{workload.name}" gives a loss of {loss}.',
            hint="Exclude the module that overflows (`exclude`) or use another dtype.",
        )
    inputs = example_inputs(workload, dataset, store)
    outputs = flat_outputs(model, inputs)
    return Evaluation(
        recipe=quantized.recipe,
        runtime=runtime,
        quality_metric="loss",
        quality=loss,
        higher_is_better=False,
        metrics={"loss": loss, "perplexity": perplexity(loss)},
        mode=workload.evaluate.mode,
        samples=len(losses),
        outputs=write_outputs(quantized, runtime, inputs, outputs, {"quality": block_contributions(losses)}, store),
    )


def word_losses(
    model: nn.Module, ids: Tensor, spec: WordLanguageModelSpec, settings: Evaluate, progress: Progress = silent
) -> Tensor:
    """Loss of every word of a stream but the first, in the mode that `settings` ask for.

    It takes as many threads as torch has in this process: all cores, unless stages share them.

    Parameters
    ----------
    ids
        int32 or int64 [N], at least two words.

    Returns
    -------
    Tensor
        float32 [N - 1], in nats.
    """
    if len(ids) < 2:
        raise InputError("The test split has fewer than two words.", hint="Give a longer test.txt.")
    state_shape = (spec.layers, spec.hidden_size)
    with torch.inference_mode():
        if settings.mode == "exact":
            return exact_losses(model, ids, state_shape, settings.sequence_length, progress)
        return segment_losses(model, ids, state_shape, settings.segments, settings.warm_up, progress)


def perplexity(loss: float) -> float:
    """``exp(loss)``, or infinity where that is beyond a float."""
    return math.exp(loss) if loss < math.log(torch.finfo(torch.float64).max) else math.inf


def block_contributions(losses: Tensor) -> Tensor:
    """Contributions of consecutive blocks of words to the mean loss: float32 [blocks], their mean is the loss.

    All blocks but the last have equal length, at most 100 words and at least 20 blocks where there are that many.
    """
    length = max(1, min(_BLOCK_TOKENS, len(losses) // 20))
    sums = torch.stack([block.sum(dtype=torch.float64) for block in torch.split(losses, length)])
    return (sums * len(sums) / len(losses)).float()
