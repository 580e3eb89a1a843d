"""Training of the word language model by truncated backpropagation through time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from storage.errors import InputError
from tasks.data.splits import load_samples
from tasks.data.training import Training, train
from tasks.domains.language_model.network import build_word_lm, zero_state

if TYPE_CHECKING:
    from tasks.domains.language_model import LanguageModelWorkload, TrainedCheckpoint
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

_VALID_COLUMNS = 10

State = tuple[Tensor, Tensor]


def train_language_model(
    workload: LanguageModelWorkload, dataset: DatasetRef, workspace: Workspace
) -> dict[str, Tensor]:
    """Train on the train split and keep the weights of the epoch with the lowest loss on the valid split.

    Adam with a learning rate that falls to zero along half a cosine; hidden states are carried from one chunk to the
    next, gradients are not. See `tasks.data.training.train`.
    """
    settings = cast("TrainedCheckpoint", workload.checkpoint)
    spec, length = workload.model, settings.sequence_length

    def make(device: torch.device) -> Training:
        model = build_word_lm(spec, dataset).to(device)
        train_data, valid_data = (
            batchify(load_samples(dataset, split, workspace.store)["tokens"], columns).to(device)
            for split, columns in (("train", settings.batch_size), ("valid", _VALID_COLUMNS))
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
        steps = settings.epochs * -(-(len(train_data) - 1) // length)

        def epoch() -> Iterator[tuple[float, Tensor]]:
            for stop, loss in _losses(model, train_data, length, zero_state(spec, train_data.shape[1], device)):
                yield min(1.0, (stop + 1) / len(train_data)), loss

        @torch.no_grad()
        def validate() -> float:
            model.eval()
            total, start = 0.0, 0
            for stop, loss in _losses(model, valid_data, length, zero_state(spec, valid_data.shape[1], device)):
                total, start = total + loss.item() * (stop - start), stop
            return total / (len(valid_data) - 1)

        return Training(
            model,
            optimizer,
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
            epoch,
            largest_gradient=settings.gradient_clip,
            validate=validate,
            hopeless=2 * math.log(max(2, dataset.vocabulary)),  # far worse than guessing evenly
        )

    return train(make, settings, workload.name, workspace.progress)


def batchify(ids: Tensor, columns: int) -> Tensor:
    """Lay a stream out in columns that are read side by side, the few words left over dropped.

    From integers [N] to int64 [N // columns, columns], contiguous.

    Raises
    ------
    InputError
        The stream is too short for two rows.
    """
    length = len(ids) // columns
    if length < 2:
        raise InputError(
            f"{len(ids)} words cannot be laid out in {columns} columns of at least two words.",
            hint="Give more text or a smaller checkpoint.batch_size.",
        )
    return ids[: length * columns].long().view(columns, length).t().contiguous()


def _losses(model: nn.Module, data: Tensor, length: int, state: State) -> Iterator[tuple[int, Tensor]]:
    """Yield the mean loss of each chunk, and how many rows are done; the state is cut off from its history."""
    for start in range(0, len(data) - 1, length):
        stop = min(start + length, len(data) - 1)
        logits, h, c = model(data[start:stop], *state)
        yield stop, F.cross_entropy(logits.flatten(0, 1), data[start + 1 : stop + 1].flatten())
        state = h.detach(), c.detach()
