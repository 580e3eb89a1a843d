"""Training of a text classifier on first use."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from storage.errors import MeasurementError
from tasks.compute import intra_op_threads, training_device
from tasks.domains.text_encoder.model import build_encoder
from tasks.domains.text_encoder.sections import TrainedCheckpoint
from tasks.domains.text_encoder.texts import load_texts

if TYPE_CHECKING:
    from tasks.domains.text_encoder.sections import EncoderWorkload
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

# How a sum is cut among threads decides its last bits; and workloads train side by side, one on each core.
_THREADS = 1
_WARM_UP = 0.1
_GRADIENT = 1.0


def train_encoder(workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
    """Train on the train split: AdamW, a learning rate that rises over a tenth of the steps and falls to zero.

    Batches are of texts of like length, in an order by seed. For a seed, the same machine and the same libraries give
    the same weights: a state dict on the CPU, float32.

    Raises
    ------
    MeasurementError
        The loss became NaN or infinite.
    """
    settings, device = workload.checkpoint, training_device()
    assert isinstance(settings, TrainedCheckpoint)
    texts = load_texts(dataset, "train", workspace.store)
    assert texts.labels is not None
    order = random.Random(settings.seed)
    with torch.random.fork_rng(), intra_op_threads(_THREADS):
        torch.manual_seed(settings.seed)
        model = build_encoder(workload.model, dataset).to(device).train()
        batches = [rows for rows, _ in texts.buckets(settings.batch_size)]
        steps = settings.epochs * len(batches)
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
        warm = max(1, round(_WARM_UP * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        )
        done = 0
        for _ in range(settings.epochs):
            order.shuffle(batches)
            for rows in batches:
                ids, mask = (tensor.to(device) for tensor in texts.batch(rows))
                optimizer.zero_grad(set_to_none=True)
                loss = cross_entropy(model(ids, mask), texts.labels[rows].to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT)
                optimizer.step()
                schedule.step()
                done += 1
                workspace.progress(done * settings.epochs / steps, settings.epochs, f"epochs, loss {loss.item():.2f}")
            if not loss.isfinite():
                raise MeasurementError(
                    f'Training of workload "{workload.name}" diverged: its loss is {loss.item()}.',
                    hint="Lower checkpoint.learning_rate.",
                )
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}
