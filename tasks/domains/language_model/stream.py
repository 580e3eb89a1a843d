"""Compute a word language model's losses along a stream of words, in one of two modes.

The ``exact`` mode follows a tutorial, "Dynamic Quantization on an LSTM Word Language Model": batch size 1, chunks of
fixed length, and a hidden state that passes from chunk to chunk. The ``segments`` mode cuts the stream into segments
that are processed in parallel. An LSTM gradually forgets its initial state, so the model reads a few words that precede
a segment, after which the state is close to the state in ``exact`` mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from storage.errors import InputError
from tasks.domains.language_model import Evaluate, WordLanguageModelSpec
from tasks.job import Progress, silent
from tasks.outputs import Call, intra_op_threads, tensors_of

# Number of segments (columns) per lane, and number of logit rows per call: wide enough for fast matrix products, with
# enough lanes for the cores, and logits that stay in the cache until the loss is computed.
_COLUMNS, _ROWS = 8, 128


def word_losses(
    call: Call,
    ids: Tensor,
    spec: WordLanguageModelSpec,
    settings: Evaluate,
    progress: Progress = silent,
    *,
    words_in_call: int | None = None,
) -> Tensor:
    """Compute the loss in nats of every word but the first, float32 [N - 1], in the mode that `settings` selects.

    `ids` are int32 or int64 [N]. With `words_in_call`, each call reads this number of words from one column.
    """
    if len(ids) < 2:
        raise InputError("The test split has fewer than two words.", hint="Provide a longer test.txt.")
    segments, warm_up, columns, rows = settings.segments, settings.warm_up, _COLUMNS, _ROWS
    if settings.mode == "exact":
        segments, warm_up, columns, rows = 1, 0, 1, settings.sequence_length
    if words_in_call is not None:
        columns, rows = 1, words_in_call
    with torch.inference_mode():
        return segment_losses(call, ids, spec, segments, warm_up, progress, columns=columns, rows=rows)


def segment_losses(
    call: Call,
    ids: Tensor,
    spec: WordLanguageModelSpec,
    segments: int,
    warm_up: int,
    progress: Progress = silent,
    *,
    columns: int = _COLUMNS,
    rows: int = _ROWS,
) -> Tensor:
    """Compute the losses of a stream's words in parallel segments.

    Before each segment except the first, the model reads `warm_up` words to initialize the state. There are fewer
    segments if they would be shorter than `warm_up` words. Segments are processed in lanes of `columns` segments, which
    do not depend on the number of cores, and neither do the results.
    """
    words = len(ids) - 1
    count = max(1, min(segments, words // max(warm_up, 1)))
    length = -(-words // count)
    count = -(-words // length)
    # Pad the last segment with zeros if necessary, and drop the losses of the padding.
    padded = torch.zeros(count * length + 1, dtype=ids.dtype)
    padded[: words + 1] = ids
    lanes = [
        _Lane(call, padded, spec, warm_up, length, first, min(first + columns, count), rows)
        for first in range(0, count, columns)
    ]
    return torch.cat(_run_lanes(lanes, words, progress))[:words]


@dataclass(frozen=True)
class _Lane:
    """Consecutive segments, from `first` to `last` (exclusive), of a stream padded to a multiple of `length`."""

    call: Call
    padded: Tensor
    spec: WordLanguageModelSpec
    warm_up: int
    length: int
    first: int
    last: int
    rows: int

    def losses(self, progress: Callable[[float], None]) -> Tensor:
        """Return losses in stream order; report the finished fraction to `progress`."""
        count, steps = self.last - self.first, max(1, self.rows // (self.last - self.first))
        inputs, targets = self._columns(0), self._columns(1)
        h, c = self._warm_state(steps)
        losses = torch.empty(self.length, count)
        for start in range(0, self.length, steps):
            stop = min(start + steps, self.length)
            # Quantized embeddings require contiguous indices.
            logits, h, c = tensors_of(self.call(inputs[start:stop].long().contiguous(), h, c))
            target = targets[start:stop].long().flatten()
            losses[start:stop] = F.cross_entropy(logits.flatten(0, 1), target, reduction="none").view(-1, count)
            progress(stop / self.length)
        return losses.t().flatten()

    def _columns(self, offset: int) -> Tensor:
        span = self.padded[self.first * self.length + offset : self.last * self.length + offset]
        return span.view(-1, self.length).t()

    def _warm_state(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return the state at the start of each segment, [L, segments, H]; the stream starts with a zero state."""
        starts = torch.arange(max(self.first, 1), self.last) * self.length
        h = c = torch.zeros(self.spec.layers, len(starts), self.spec.hidden_size)
        warm_up_words = self.padded[starts + torch.arange(-self.warm_up, 0).unsqueeze(1)]
        for start in range(0, self.warm_up if len(starts) else 0, steps):
            _, h, c = tensors_of(self.call(warm_up_words[start : start + steps].long(), h, c))
        if self.first == 0:
            zero = torch.zeros(self.spec.layers, 1, self.spec.hidden_size)
            h, c = torch.cat([zero, h], dim=1), torch.cat([zero, c], dim=1)
        return h, c


def _run_lanes(lanes: Sequence[_Lane], words: int, progress: Progress) -> list[Tensor]:
    """Return each lane's losses, in order; report the progress of the first lane, which runs in the calling thread."""
    cores = torch.get_num_threads()
    workers = min(len(lanes), cores)

    def report(share: float) -> None:
        progress(share * words, words, "words")

    def run(worker: int) -> list[Tensor]:
        # Inference mode applies only to the thread that enables it.
        with torch.inference_mode():
            return [lane.losses(report if lane.first == 0 else lambda share: None) for lane in lanes[worker::workers]]

    with intra_op_threads(max(1, cores // workers)), ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, worker) for worker in range(1, workers)]
        by_worker = [run(0), *(future.result() for future in futures)]
    return [by_worker[index % workers][index // workers] for index in range(len(lanes))]
