"""Training of the word language model by truncated backpropagation through time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from storage.errors import InputError, MeasurementError
from tasks.compute import intra_op_threads, training_device
from tasks.domains.language_model.corpus import load_ids
from tasks.domains.language_model.model import build_word_lm, zero_state
from tasks.domains.language_model.sections import TrainedCheckpoint

if TYPE_CHECKING:
    from tasks.domains.language_model.sections import LanguageModelWorkload, WordLanguageModelSpec
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

# How a product is cut among threads decides its last bits: one thread gives the same weights on any number of cores,
# and leaves the others to the training of the next workload.
_THREADS = 1
_VALID_COLUMNS = 10

State = tuple[Tensor, Tensor]


def train_language_model(
    workload: LanguageModelWorkload, dataset: DatasetRef, workspace: Workspace
) -> dict[str, Tensor]:
    """Train on the train split and keep the weights of the epoch with the lowest loss on the valid split.

    Adam with a learning rate that falls to zero along half a cosine; hidden states are carried from one chunk to the
    next, gradients are not. Training runs on CUDA where there is one. For a seed, the same machine and the same
    libraries give the same weights: a state dict on the CPU, float32.

    Raises
    ------
    MeasurementError
        The loss became NaN or far worse than that of guessing evenly.
    """
    settings, spec, store = workload.checkpoint, workload.model, workspace.store
    assert isinstance(settings, TrainedCheckpoint)
    device, length = training_device(), settings.sequence_length
    with torch.random.fork_rng(), intra_op_threads(_THREADS):
        torch.manual_seed(settings.seed)
        model = build_word_lm(spec, dataset).to(device)
        train_data = batchify(load_ids(dataset, "train", store), settings.batch_size).to(device)
        valid_data = batchify(load_ids(dataset, "valid", store), _VALID_COLUMNS).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
        steps = settings.epochs * -(-(len(train_data) - 1) // length)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        best_loss, best = math.inf, _cpu_state(model)
        for epoch in range(settings.epochs):
            model.train()
            state = zero_state(spec, train_data.shape[1], device)
            for start in range(0, len(train_data) - 1, length):
                optimizer.zero_grad(set_to_none=True)
                loss, state = _chunk_loss(model, train_data, start, length, state)
                loss.backward()  # type: ignore[no-untyped-call]
                if settings.gradient_clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
                optimizer.step()
                schedule.step()
                done = epoch + min(1.0, (start + length) / len(train_data))
                words = round(done * train_data.numel())
                workspace.progress(done, settings.epochs, f"epochs, {words:,} words, loss {loss.item():.2f}")
            valid_loss = _valid_loss(model, valid_data, spec, length)
            # Far worse than guessing evenly; also true of NaN.
            if not valid_loss <= 2 * math.log(max(2, len(model.decoder.bias))):
                raise MeasurementError(
                    f'Training of workload "{workload.name}" diverged in epoch {epoch + 1}: '
                    f"validation loss {valid_loss}.",
                    hint="Lower checkpoint.learning_rate or set checkpoint.gradient_clip.",
                )
            if valid_loss < best_loss:
                best_loss, best = valid_loss, _cpu_state(model)
    return best


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


def _chunk_loss(model: nn.Module, data: Tensor, start: int, length: int, state: State) -> tuple[Tensor, State]:
    """Mean loss of one chunk, and the state after it cut off from its history."""
    length = min(length, len(data) - 1 - start)
    logits, h, c = model(data[start : start + length], *state)
    loss = F.cross_entropy(logits.flatten(0, 1), data[start + 1 : start + 1 + length].flatten())
    return loss, (h.detach(), c.detach())


@torch.no_grad()
def _valid_loss(model: nn.Module, data: Tensor, spec: WordLanguageModelSpec, length: int) -> float:
    model.eval()
    state = zero_state(spec, data.shape[1], data.device)
    total = 0.0
    for start in range(0, len(data) - 1, length):
        loss, state = _chunk_loss(model, data, start, length, state)
        total += loss.item() * min(length, len(data) - 1 - start)
    return total / (len(data) - 1)


def _cpu_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
