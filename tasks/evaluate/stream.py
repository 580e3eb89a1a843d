"""Word by word losses over one long stream of words, by two ways of carrying the hidden state.

`exact_losses` is the procedure of the PyTorch tutorial "Dynamic Quantization on an LSTM Word Language Model": batch
size 1, fixed chunks, hidden state carried from chunk to chunk. It is sequential, one row of the decoder at a time.
`segment_losses` cuts the stream into segments that run as one batch. The state at the start of a segment is unknown,
but an LSTM forgets: run over some words before the segment from a zero state, it converges to the state that the
sequential run would have had.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.progress import Progress, silent

# Logits of so many rows stay in cache between the decoder and the loss; more rows cost memory bandwidth instead.
_ROWS = 32


def exact_losses(
    model: nn.Module, ids: Tensor, state_shape: tuple[int, int], sequence_length: int, progress: Progress = silent
) -> Tensor:
    """Losses in nats of every word but the first, in order, by the tutorial's own procedure.

    Parameters
    ----------
    ids
        int32 or int64 [N].
    state_shape
        Layers and hidden size of the LSTM.
    sequence_length
        Words in a call (bptt).

    Returns
    -------
    Tensor
        float32 [N - 1].
    """
    words = len(ids) - 1
    h, c = _zeros(state_shape, 1), _zeros(state_shape, 1)
    losses = torch.empty(words)
    for start in range(0, words, sequence_length):
        stop = min(start + sequence_length, words)
        logits, h, c = model(ids[start:stop].long().unsqueeze(1), h, c)
        losses[start:stop] = F.cross_entropy(logits.squeeze(1), ids[start + 1 : stop + 1].long(), reduction="none")
        progress(stop, words, "words")
    return losses


def segment_losses(
    model: nn.Module,
    ids: Tensor,
    state_shape: tuple[int, int],
    segments: int,
    warm_up: int,
    progress: Progress = silent,
) -> Tensor:
    """Losses in nats of every word but the first, in order, computed in parallel segments.

    Fewer segments are made where they would be shorter than their warm-up.

    Parameters
    ----------
    ids
        int32 or int64 [N].
    state_shape
        Layers and hidden size of the LSTM.
    segments
        Columns that run as one batch.
    warm_up
        Words before a segment that are run for the state alone.

    Returns
    -------
    Tensor
        float32 [N - 1].
    """
    words = len(ids) - 1
    count = max(1, min(segments, words // max(warm_up, 1)))
    length = -(-words // count)
    count = -(-words // length)
    # Only the last segment can be short: it is filled up with a word whose loss is dropped at the end.
    padded = torch.zeros(count * length + 1, dtype=ids.dtype)
    padded[: words + 1] = ids
    inputs, targets = padded[:-1].view(count, length).t(), padded[1:].view(count, length).t()
    h, c = _warm_state(model, inputs, state_shape, warm_up)
    losses = torch.empty(length, count)
    steps = max(1, _ROWS // count)
    for start in range(0, length, steps):
        stop = min(start + steps, length)
        logits, h, c = model(inputs[start:stop].long(), h, c)
        loss = F.cross_entropy(logits.flatten(0, 1), targets[start:stop].long().flatten(), reduction="none")
        losses[start:stop] = loss.view(stop - start, count)
        progress(min(stop * count, words), words, "words")
    return losses.t().reshape(-1)[:words]


def _warm_state(model: nn.Module, inputs: Tensor, state_shape: tuple[int, int], warm_up: int) -> tuple[Tensor, Tensor]:
    """States [L, S, H] at the start of each segment; the first segment starts from zero, as the stream does."""
    count = inputs.shape[1]
    h, c = _zeros(state_shape, count - 1), _zeros(state_shape, count - 1)
    before = inputs[-warm_up:, :-1] if warm_up else inputs[:0, :-1]
    steps = max(1, _ROWS // max(count - 1, 1))
    for start in range(0, len(before) if count > 1 else 0, steps):
        _, h, c = model(before[start : start + steps].long(), h, c)
    return torch.cat([_zeros(state_shape, 1), h], dim=1), torch.cat([_zeros(state_shape, 1), c], dim=1)


def _zeros(state_shape: tuple[int, int], columns: int) -> Tensor:
    layers, hidden_size = state_shape
    return torch.zeros(layers, columns, hidden_size)
