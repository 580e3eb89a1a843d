"""Quality of a word language model: losses along one long stream of words, by two ways of carrying the state.

The mode ``exact`` is the procedure of the PyTorch tutorial "Dynamic Quantization on an LSTM Word Language Model": batch
size 1, fixed chunks, hidden state carried from chunk to chunk. It is sequential, and here a stream of one segment.
The mode ``segments`` cuts the stream into segments that run as one batch. The state at the start of a segment is
unknown, but an LSTM forgets: run over some words before the segment from a zero state, it converges to the state that
the sequential run would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from storage.errors import InputError, MeasurementError
from tasks.data.evaluation import perplexity_beside
from tasks.data.metrics import Quality
from tasks.data.splits import load_samples
from tasks.domains.language_model.network import zero_state
from tasks.job import Progress, silent
from tasks.outputs import Call, intra_op_threads, tensors_of

if TYPE_CHECKING:
    from tasks.domains.language_model import Evaluate, LanguageModelWorkload, WordLanguageModelSpec
    from tasks.job import Job, Workspace


@dataclass(frozen=True)
class LaneShape:
    """How many segments a lane has, a column each, and how many rows of logits a call of it may give."""

    columns: int
    rows: int


# Fewer columns leave the LSTM's products narrow, more leave fewer lanes for the cores. Fewer rows read the decoder's
# weights more often; the logits of more no longer stay in cache until the loss is taken.
FAST = LaneShape(columns=8, rows=128)


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
    ids = load_samples(job.dataset, "test", workspace.store)["tokens"]
    settings, words = job.workload.evaluate, job.workload.benchmark.sequence_length if apart else None
    losses = word_losses(call, ids, job.workload.model, settings, workspace.progress, words_in_call=words)
    loss = losses.mean(dtype=torch.float64).item()
    if not math.isfinite(loss):
        raise MeasurementError(
            f"the model gives a loss of {loss}.",
            hint="Exclude the module that overflows (`exclude`) or use another dtype.",
        )
    return Quality(
        metric="loss",
        value=loss,
        higher_is_better=False,
        metrics={"loss": loss, **perplexity_beside(loss)},
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
            shape = LaneShape(columns=1, rows=words_in_call or settings.sequence_length)
            return segment_losses(call, ids, spec, 1, 0, progress, shape=shape)
        shape = FAST if words_in_call is None else LaneShape(columns=1, rows=words_in_call)
        return segment_losses(call, ids, spec, settings.segments, settings.warm_up, progress, shape=shape)


def segment_losses(
    call: Call,
    ids: Tensor,
    spec: WordLanguageModelSpec,
    segments: int,
    warm_up: int,
    progress: Progress = silent,
    *,
    shape: LaneShape = FAST,
) -> Tensor:
    """Losses in nats of every word but the first, in order, computed in parallel segments.

    From int32 or int64 [N] to float32 [N - 1]. The `warm_up` words before a segment are run for the state alone; fewer
    segments are made where they would be shorter than that. Segments run in lanes of some columns (`shape`), a
    thread each: the lanes, and with them the result, are the same on every number of cores.
    """
    words = len(ids) - 1
    count = max(1, min(segments, words // max(warm_up, 1)))
    length = -(-words // count)
    count = -(-words // length)
    # Only the last segment can be short: it is filled up with a word whose loss is dropped at the end.
    padded = torch.zeros(count * length + 1, dtype=ids.dtype)
    padded[: words + 1] = ids
    lanes = [
        _Lane(call, padded, spec, warm_up, length, first, min(first + shape.columns, count), shape.rows)
        for first in range(0, count, shape.columns)
    ]
    return torch.cat(_run_lanes(lanes, words, progress))[:words]


@dataclass(frozen=True)
class _Lane:
    """Neighbouring segments, `first` to `last` (excluded), of a stream that is padded to whole segments of `length`."""

    call: Call
    padded: Tensor
    spec: WordLanguageModelSpec
    warm_up: int
    length: int
    first: int
    last: int
    rows: int

    def losses(self, progress: Callable[[float], None]) -> Tensor:
        """Losses in the stream's order; `progress` is told the share that is done."""
        count, steps = self.last - self.first, max(1, self.rows // (self.last - self.first))
        inputs, targets = self._columns(0), self._columns(1)
        h, c = self._warm_state(steps)
        losses = torch.empty(self.length, count)
        for start in range(0, self.length, steps):
            stop = min(start + steps, self.length)
            # Quantized embeddings take contiguous indices only.
            logits, h, c = tensors_of(self.call(inputs[start:stop].long().contiguous(), h, c))
            target = targets[start:stop].long().flatten()
            losses[start:stop] = F.cross_entropy(logits.flatten(0, 1), target, reduction="none").view(-1, count)
            progress(stop / self.length)
        return losses.t().flatten()

    def _columns(self, offset: int) -> Tensor:
        """The lane's segments, moved on by `offset` words, as columns [length, segments]."""
        span = self.padded[self.first * self.length + offset : self.last * self.length + offset]
        return span.view(-1, self.length).t()

    def _warm_state(self, steps: int) -> tuple[Tensor, Tensor]:
        """States [L, segments, H] at the start of each segment; the stream itself starts from zero."""
        starts = torch.arange(max(self.first, 1), self.last) * self.length
        h, c = zero_state(self.spec, len(starts))
        before = self.padded[starts + torch.arange(-self.warm_up, 0).unsqueeze(1)]
        for start in range(0, self.warm_up if len(starts) else 0, steps):
            _, h, c = tensors_of(self.call(before[start : start + steps].long(), h, c))
        if self.first == 0:
            zero_h, zero_c = zero_state(self.spec, 1)
            h, c = torch.cat([zero_h, h], dim=1), torch.cat([zero_c, c], dim=1)
        return h, c


def _run_lanes(lanes: Sequence[_Lane], words: int, progress: Progress) -> list[Tensor]:
    """Each lane's losses, in order; the first lane's share speaks for all of them, from the caller's own thread."""
    cores = torch.get_num_threads()
    workers = min(len(lanes), cores)

    def tell(share: float) -> None:
        progress(share * words, words, "words")

    def run(worker: int) -> list[Tensor]:
        # Inference mode is a setting of the thread.
        with torch.inference_mode():
            return [lane.losses(tell if lane.first == 0 else lambda share: None) for lane in lanes[worker::workers]]

    with intra_op_threads(max(1, cores // workers)), ThreadPoolExecutor(workers) as pool:
        others = [pool.submit(run, worker) for worker in range(1, workers)]
        by_worker = [run(0), *(other.result() for other in others)]
    return [by_worker[index % workers][index // workers] for index in range(len(lanes))]
