"""What fine-tuning an image classifier needs: shifted training images, cross-entropy, and top-1 on the valid split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.domains.image_classification.images import load_images, training_batches
from tasks.domains.image_classification.sections import ImageWorkload
from tasks.job import Job
from tasks.outputs import tensors_of


@dataclass(frozen=True)
class ImageFineTuning:
    """A data set of images in batches of one size, as `tasks.quantize.fine_tune.FineTuning` asks for it."""

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
        """Top-1 (share) and mean cross-entropy on the valid split.

        Raises
        ------
        QuantizationError
            There are no valid images.
        """
        split = load_images(self.job.dataset, "valid", self.store)
        if not len(split):
            raise QuantizationError(
                f'The data set of workload "{self.job.workload.name}" has no valid images to choose the best epoch by.',
                hint="Set data.valid or data.valid_share above 0.",
            )
        correct, loss = 0.0, 0.0
        for images, labels in split.batches(self.batch_size):
            logits, expected = _logits(model(images.to(device))), labels.to(device)
            correct += float((logits.argmax(1) == expected).sum())
            loss += float(cross_entropy(logits, expected, reduction="sum"))
        return correct / len(split), loss / len(split)


def _logits(outputs: object) -> Tensor:
    # GoogLeNet and Inception also return their auxiliary heads' outputs in training.
    return tensors_of(outputs)[0]
