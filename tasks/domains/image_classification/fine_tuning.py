"""Shuffled and shifted training images, and what fine-tuning an image classifier needs of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from storage.errors import InputError
from tasks.data.splits import load_samples
from tasks.outputs import tensors_of

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.domains.image_classification import ImageWorkload
    from tasks.job import Job
    from tasks.refs import DatasetRef


def training_batches(
    dataset: DatasetRef, store: ArtifactStore, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of the train split as `Samples.batches` does: shuffled, each image shifted at random.

    A shift, here by up to 1/16 of the side, keeps the label of any picture, even of a character, which a flip does not.
    A last batch of a single sample is left out: batch normalization cannot train on it. The state of `generator`, on
    the CPU, moves on, so that every epoch differs.

    Raises
    ------
    InputError
        There is no batch of two images.
    """
    split = load_samples(dataset, "train", store)
    if min(len(split), batch_size) < 2:
        raise InputError(
            f"{len(split)} training images in batches of {batch_size}: there is no batch of two to train on.",
            hint="Set batch_size to 2 or more, or provide more training images.",
        )
    order = torch.randperm(len(split), generator=generator)
    for batch in split.batches(batch_size, order):
        (images,), labels, count = batch.inputs, batch.target, batch.size
        if labels is not None and count > 1:
            rows = _shifted_positions(count, images.shape[2], generator).view(count, 1, -1, 1).expand(images.shape)
            columns = _shifted_positions(count, images.shape[3], generator).view(count, 1, 1, -1).expand(images.shape)
            yield images.gather(2, rows).gather(3, columns), labels


def _shifted_positions(count: int, side: int, generator: torch.Generator) -> Tensor:
    """int64 [count, side]: where each pixel of a shifted line comes from; what enters repeats the edge."""
    reach = side // 16
    shift = torch.randint(-reach, reach + 1, (count, 1), generator=generator)
    return (torch.arange(side) + shift).clamp_(0, side - 1)


@dataclass(frozen=True)
class ImageFineTuning:
    """A data set of images in batches of one size, as `tasks.data.tuning.FineTuning` asks for it."""

    job: Job[ImageWorkload]
    store: ArtifactStore
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the train split."""
        return math.ceil(self.job.dataset.splits["train"] / self.batch_size)

    def batches(self, generator: torch.Generator) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """One epoch of (images,), labels: float32 [B, 3, H, W] and int64 [B]; see `training_batches`."""
        for images, labels in training_batches(self.job.dataset, self.store, self.batch_size, generator):
            yield (images,), labels

    def loss(self, outputs: object, target: Tensor) -> Tensor:
        """Cross-entropy of the logits."""
        return cross_entropy(_logits(outputs), target)

    def validate(self, model: nn.Module, device: torch.device) -> tuple[float, float]:
        """Top-1 (share) and mean cross-entropy on the valid split."""
        split = load_samples(self.job.dataset, "valid", self.store)
        correct, loss = 0.0, 0.0
        for batch in split.batches(self.batch_size):
            assert batch.target is not None
            logits, expected = _logits(model(batch.inputs[0].to(device))), batch.target.to(device)
            correct += float((logits.argmax(1) == expected).sum())
            loss += float(cross_entropy(logits, expected, reduction="sum"))
        return correct / len(split), loss / len(split)


def _logits(outputs: object) -> Tensor:
    # GoogLeNet and Inception also return their auxiliary heads' outputs in training.
    return tensors_of(outputs)[0]
