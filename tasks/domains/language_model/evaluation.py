"""Cross-entropy loss of a word language model on the test split, exactly in sequence or in parallel segments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from storage.errors import InputError, MeasurementError
from tasks.domains.base import Quality
from tasks.domains.language_model.corpus import load_ids
from tasks.domains.language_model.stream import FAST, LaneShape, exact_losses, segment_losses
from tasks.job import Progress, silent

if TYPE_CHECKING:
    from tasks.domains.language_model.sections import Evaluate, LanguageModelWorkload, WordLanguageModelSpec
    from tasks.job import Job, Workspace
    from tasks.outputs import Call


def evaluate_language_model(
    job: Job[LanguageModelWorkload], call: Call, workspace: Workspace, *, apart: bool = False
) -> Quality:
    """Loss and perplexity on the whole test split; the samples are the losses of its words, in order.

    Parameters
    ----------
    apart
        Call the model as the benchmark does at batch size 1: with ``benchmark.sequence_length`` words of one stream.

    Raises
    ------
    MeasurementError
        The loss is NaN or infinite.
    """
    ids = load_ids(job.dataset, "test", workspace.store)
    settings, words = job.workload.evaluate, job.workload.benchmark.sequence_length if apart else None
    losses = word_losses(call, ids, job.workload.model, settings, workspace.progress, words_in_call=words)
    loss = losses.mean(dtype=torch.float64).item()
    if not math.isfinite(loss):
        raise MeasurementError(
            f"the model gives a loss of {loss}.",
            hint="Exclude the module that overflows (`exclude`) or use another dtype.",
        )
    # Beyond the largest float the exponential says nothing that the loss does not.
    perplexity = {"perplexity": math.exp(loss)} if loss < math.log(torch.finfo(torch.float64).max) else {}
    return Quality(
        metric="loss",
        value=loss,
        higher_is_better=False,
        metrics={"loss": loss, **perplexity},
        samples={"quality": losses},
        count=len(losses),
        mode=f"{settings.mode}, rows apart" if apart else settings.mode,
        contributions="serial",
    )


def word_losses(
    call: Call,
    ids: Tensor,
    spec: WordLanguageModelSpec,
    settings: Evaluate,
    progress: Progress = silent,
    *,
    words_in_call: int | None = None,
) -> Tensor:
    """Loss of every word of a stream but the first, in the mode that `settings` ask for.

    It takes as many threads as torch has in this process: all cores, unless stages share them.

    Parameters
    ----------
    ids
        int32 or int64 [N], at least two words.
    words_in_call
        How many words, all of one column, the model is called with; by default what the mode does.

    Returns
    -------
    Tensor
        float32 [N - 1], in nats.
    """
    if len(ids) < 2:
        raise InputError("The test split has fewer than two words.", hint="Give a longer test.txt.")
    with torch.inference_mode():
        if settings.mode == "exact":
            return exact_losses(call, ids, spec, words_in_call or settings.sequence_length, progress)
        shape = FAST if words_in_call is None else LaneShape(columns=1, rows=words_in_call)
        return segment_losses(call, ids, spec, settings.segments, settings.warm_up, progress, shape=shape)
