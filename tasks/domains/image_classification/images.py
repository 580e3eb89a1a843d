"""Prepared images: how they lie in the store, and how they are read as normalized batches.

An artifact of kind ``images`` holds, for each split, ``<split>.images.npy`` (uint8 [N, 3, H, W]) and
``<split>.labels.npy`` (int64 [N]), and ``images.json``. Images are decoded once, when the artifact is written;
normalization to float32 happens batch by batch, so that a data set costs its bytes on disk and one batch in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.refs import DatasetRef, Frozen

KIND = "images"
DESCRIPTION = "images.json"
Split = Literal["train", "calibration", "valid", "test"]
Pixels = npt.NDArray[np.uint8]


class Description(Frozen):
    """The content of ``images.json``.

    ``classes`` are names by label, ``mean`` and ``std`` normalize each channel's values in 0…1, ``skipped`` names the
    images that could not be read, and ``duplicates`` counts those that were already there. ``notes`` are those of
    `tasks.refs.DatasetRef`.
    """

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    skipped: tuple[str, ...] = ()
    duplicates: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageSplit:
    """One split, memory-mapped: `images` uint8 [N, 3, H, W], `labels` int64 [N], and how to normalize."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, batch_size: int, indices: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalized images, float32 [B, 3, H, W], and labels, int64 [B]; the last batch may be smaller.

        `indices`, int64 [M], are the samples in the order wanted; all of them by default.
        """
        for start in range(0, len(self if indices is None else indices), batch_size):
            # In the order in which they are stored, pictures are read where they lie, without a copy.
            place = slice(start, start + batch_size)
            chosen = place if indices is None else indices[place]
            yield normalize(self.images[chosen], self.mean, self.std), self.labels[chosen]


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Turn uint8 [B, 3, H, W] into float32 of the same shape, ``(value / 255 - mean) / std`` per channel."""
    centre = torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1)
    spread = torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1)
    return images.float().div_(255).sub_(centre).div_(spread)


def read_description(dataset: DatasetRef, store: ArtifactStore) -> Description:
    """Read a data set's ``images.json``."""
    path = store.path(dataset.kind, dataset.digest) / DESCRIPTION
    return Description.model_validate_json(path.read_text(encoding="utf-8"))


def load_images(dataset: DatasetRef, split: Split, store: ArtifactStore) -> ImageSplit:
    """Open one split without reading it.

    Raises
    ------
    StoreError
        The artifact is not in the store.
    """
    folder, description = store.path(dataset.kind, dataset.digest), read_description(dataset, store)
    # Copy-on-write: torch has no read-only tensors and warns about read-only arrays; nothing reaches the file.
    images, labels = (
        torch.from_numpy(np.load(folder / f"{split}.{name}.npy", mmap_mode="c", allow_pickle=False))
        for name in ("images", "labels")
    )
    return ImageSplit(images, labels, description.mean, description.std)


def example_images(dataset: DatasetRef, store: ArtifactStore, batch_size: int) -> dict[str, Tensor]:
    """The first images of the test split, repeated where it is smaller: ``images``, float32 [B, 3, H, W]."""
    split = load_images(dataset, "test", store)
    images, _ = next(split.batches(batch_size, torch.arange(batch_size) % len(split)))
    return {"images": images}


def training_batches(
    dataset: DatasetRef, store: ArtifactStore, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of the train split as `ImageSplit.batches` does: shuffled, each image shifted at random.

    A shift, here by up to 1/16 of the side, keeps the label of any picture, even of a character, which a flip does not.
    A last batch of a single sample is left out: batch normalization cannot train on it. The state of `generator`, on
    the CPU, moves on, so that every epoch differs.

    Raises
    ------
    InputError
        There is no batch of two images.
    """
    split = load_images(dataset, "train", store)
    if min(len(split), batch_size) < 2:
        raise InputError(
            f"{len(split)} training images in batches of {batch_size}: there is no batch of two to train on.",
            hint="Set batch_size to 2 or more, or provide more training images.",
        )
    order = torch.randperm(len(split), generator=generator)
    for images, labels in split.batches(batch_size, order):
        if (count := len(labels)) > 1:
            rows = _shifted_positions(count, images.shape[2], generator).view(count, 1, -1, 1).expand(images.shape)
            columns = _shifted_positions(count, images.shape[3], generator).view(count, 1, 1, -1).expand(images.shape)
            yield images.gather(2, rows).gather(3, columns), labels


def _shifted_positions(count: int, side: int, generator: torch.Generator) -> Tensor:
    """int64 [count, side]: where each pixel of a shifted line comes from; what enters repeats the edge."""
    reach = side // 16
    shift = torch.randint(-reach, reach + 1, (count, 1), generator=generator)
    return (torch.arange(side) + shift).clamp_(0, side - 1)
