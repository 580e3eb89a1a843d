"""Training of a text classifier on first use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasks.data.training import Training, train
from tasks.domains.text_encoder.network import build_encoder
from tasks.domains.text_encoder.texts import load_texts

if TYPE_CHECKING:
    from tasks.domains.text_encoder import EncoderWorkload, TrainedCheckpoint
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

_WARM_UP = 0.1
_GRADIENT = 1.0


def train_encoder(workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
    """Train on the train split: AdamW, a learning rate that rises over a tenth of the steps and falls to zero.

    Batches are of texts of like length, in an order by seed. See `tasks.data.training.train`.
    """
    settings, texts = cast("TrainedCheckpoint", workload.checkpoint), load_texts(dataset, "train", workspace.store)
    labels, order = cast(Tensor, texts.labels), random.Random(settings.seed)

    def make(device: torch.device) -> Training:
        model = build_encoder(workload.model, dataset).to(device)
        batches = [rows for rows, _ in texts.buckets(settings.batch_size)]
        steps = settings.epochs * len(batches)
        warm = max(1, round(_WARM_UP * steps))
        optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
        )

        def epoch() -> Iterator[tuple[float, Tensor]]:
            order.shuffle(batches)
            for done, rows in enumerate(batches, start=1):
                ids, mask = (tensor.to(device) for tensor in texts.padded(rows))
                yield done / len(batches), cross_entropy(model(ids, mask), labels[rows].to(device))

        return Training(model, optimizer, schedule, epoch, largest_gradient=_GRADIENT)

    return train(make, settings, workload.name, workspace.progress)
