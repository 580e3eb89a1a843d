"""Cross-entropy loss of a word language model on the test split, exactly in sequence or in parallel segments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from storage.errors import InputError, MeasurementError
from tasks.domains.base import Quality
from tasks.domains.language_model.corpus import load_ids
from tasks.domains.language_model.stream import exact_losses, segment_losses
from tasks.job import Progress, silent

if TYPE_CHECKING:
    from tasks.domains.language_model.sections import Evaluate, LanguageModelWorkload, WordLanguageModelSpec
    from tasks.job import Job, Workspace
    from tasks.outputs import Call

_BLOCK_TOKENS = 100


def evaluate_language_model(job: Job[LanguageModelWorkload], call: Call, workspace: Workspace) -> Quality:
    """Loss and perplexity on the whole test split.

    The samples are contributions of consecutive blocks of words, whose mean is the loss. Neighbouring words share their
    context, so blocks, not words, are what a bootstrap may draw.

    Raises
    ------
    MeasurementError
        The loss is NaN or infinite.
    """
    ids = load_ids(job.dataset, "test", workspace.store)
    losses = word_losses(call, ids, job.workload.model, job.workload.evaluate, workspace.progress)
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
        samples={"quality": block_contributions(losses)},
        count=len(losses),
        mode=job.workload.evaluate.mode,
    )


def word_losses(
    call: Call, ids: Tensor, spec: WordLanguageModelSpec, settings: Evaluate, progress: Progress = silent
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
    with torch.inference_mode():
        if settings.mode == "exact":
            return exact_losses(call, ids, spec, settings.sequence_length, progress)
        return segment_losses(call, ids, spec, settings.segments, settings.warm_up, progress)


def block_contributions(losses: Tensor) -> Tensor:
    """Contributions of consecutive blocks of words to the mean loss: float32 [blocks], their mean is the loss.

    All blocks but the last have equal length, at most 100 words and at least 20 blocks where there are that many.
    """
    length = max(1, min(_BLOCK_TOKENS, len(losses) // 20))
    sums = torch.stack([block.sum(dtype=torch.float64) for block in torch.split(losses, length)])
    return (sums * len(sums) / len(losses)).float()
