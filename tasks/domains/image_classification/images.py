"""Prepared images: how they lie in the store, and how they are read as normalized batches.

An artifact of kind ``images`` holds, for each split, ``<split>.images.npy`` (uint8 [N, 3, H, W]) and
``<split>.labels.npy`` (int64 [N]), and once ``images.json`` with class names, normalization and what was left out.
Images are decoded once, when the artifact is made; normalization to float32 happens batch by batch, so that a data set
costs its bytes on disk and one batch in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.domains.image_classification.splits import Split
from tasks.refs import DatasetRef

DESCRIPTION = "images.json"


@dataclass(frozen=True)
class Description:
    """What ``images.json`` says: class names by label, per-channel mean and standard deviation of values in 0…1."""

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def write(self, folder: Path, **further: object) -> None:
        """Write the file; `further` is kept for people."""
        content = {"classes": self.classes, "mean": self.mean, "std": self.std, **further}
        (folder / DESCRIPTION).write_text(json.dumps(content, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Read the file of a published artifact."""
        content = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        return cls(tuple(content["classes"]), tuple(content["mean"]), tuple(content["std"]))


@dataclass(frozen=True)
class ImageSplit:
    """One split, memory-mapped.

    Attributes
    ----------
    images
        uint8 [N, 3, H, W].
    labels
        int64 [N].
    mean, std
        Per-channel normalization of values in 0…1.
    """

    images: torch.Tensor
    labels: torch.Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, batch_size: int, indices: torch.Tensor | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Normalized batches in order.

        Parameters
        ----------
        batch_size
            Samples per batch; the last one may be smaller.
        indices
            int64 [M]: which samples, in which order; every one where left out.

        Yields
        ------
        images, labels
            float32 [B, 3, H, W] and int64 [B].
        """
        order = torch.arange(len(self)) if indices is None else indices
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            yield normalize(self.images[chosen], self.mean, self.std), self.labels[chosen]


def normalize(images: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """Turn uint8 [B, 3, H, W] into float32 of the same shape, ``(value / 255 - mean) / std`` per channel."""
    centre = torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1)
    spread = torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1)
    return images.float().div_(255).sub_(centre).div_(spread)


def load_images(dataset: DatasetRef, split: Split, store: ArtifactStore) -> ImageSplit:
    """Open one split without reading it.

    Raises
    ------
    StoreError
        The artifact is not in the store.
    """
    folder = store.path(dataset.kind, dataset.digest)
    description = Description.read(folder)
    return ImageSplit(
        images=_mapped(folder / f"{split}.images.npy"),
        labels=_mapped(folder / f"{split}.labels.npy"),
        mean=description.mean,
        std=description.std,
    )


def class_names(dataset: DatasetRef, store: ArtifactStore) -> tuple[str, ...]:
    """Name of each label."""
    return Description.read(store.path(dataset.kind, dataset.digest)).classes


def training_batches(
    dataset: DatasetRef, store: ArtifactStore, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch of the train split: shuffled, each image shifted at random by up to 1/16 of its side.

    A shift keeps the label of any picture, a character's too, which a flip does not. A last batch of a single sample
    is left out: batch normalization cannot train on it.

    Parameters
    ----------
    generator
        CPU generator of order and shifts; its state moves on, so that every epoch differs.

    Yields
    ------
    images, labels
        float32 [B, 3, H, W] and int64 [B].

    Raises
    ------
    InputError
        There is no batch of two images.
    """
    split = load_images(dataset, "train", store)
    if min(len(split), batch_size) < 2:
        raise InputError(
            f"{len(split)} training images in batches of {batch_size}: there is no batch of two to train on.",
            hint="Set batch_size to 2 or more, or give more training images.",
        )
    order = torch.randperm(len(split), generator=generator)
    for images, labels in split.batches(batch_size, order):
        if len(labels) > 1:
            yield _shifted(images, generator), labels


def _shifted(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    count, _, height, width = images.shape
    rows = _shifted_positions(count, height, generator).view(count, 1, height, 1)
    columns = _shifted_positions(count, width, generator).view(count, 1, 1, width)
    return images.gather(2, rows.expand(images.shape)).gather(3, columns.expand(images.shape))


def _shifted_positions(count: int, side: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [count, side]: where each pixel of a shifted line comes from; what enters repeats the edge."""
    reach = side // 16
    shift = torch.randint(-reach, reach + 1, (count, 1), generator=generator)
    return (torch.arange(side) + shift).clamp_(0, side - 1)


def _mapped(path: Path) -> torch.Tensor:
    # Copy-on-write: torch has no read-only tensors and warns about read-only arrays; nothing reaches the file.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
