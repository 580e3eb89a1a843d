"""Prepared texts, which differ in length: padded to batches of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from tasks.data.samples import TARGET
from tasks.data.splits import Batch, Column, load_samples
from tasks.refs import DatasetRef

IDS, PAIRS = "input_ids", "pair_ids"
_STEP = 16  # lengths are padded to multiples of it, or of what doubles it, up to the longest


@dataclass(frozen=True)
class Texts:
    """Token ids of a split's texts, the id that pads them, and their classes, int64 [N], if they have any."""

    ids: Column
    padding: int
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def padded(self, rows: Sequence[int], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return ids and mask, int64 [B, T], of some texts, padded to the longest of them or to `length`."""
        texts = [self.ids[row] for row in rows]
        width = length or max(map(len, texts))
        ids = torch.full((len(texts), width), self.padding)
        mask = torch.zeros((len(texts), width), dtype=torch.int64)
        for place, text in enumerate(texts):
            ids[place, : len(text)] = text
            mask[place, : len(text)] = 1
        return ids, mask

    def batches(self, batch_size: int, targets: Tensor | None = None, *, apart: bool = False) -> Iterator[Batch]:
        """Yield batches of texts of like length with their `targets`, or one text at a time and no padding."""
        chosen = (([row], None) for row in range(len(self))) if apart else self.buckets(batch_size)
        for rows, length in chosen:
            yield Batch(self.padded(rows, length), None if targets is None else targets[rows], len(rows), rows)

    def buckets(self, batch_size: int) -> Iterator[tuple[list[int], int]]:
        """Yield rows that run together, and the length that they are padded to; few lengths are compiled for.

        Shortest first; rows of one length keep their order.
        """
        lengths = [len(self.ids[row]) for row in range(len(self))]
        longest = max(lengths)
        by_bucket: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            by_bucket.setdefault(bucket_of(length, longest), []).append(row)
        for padded, rows in sorted(by_bucket.items()):
            for start in range(0, len(rows), batch_size):
                yield rows[start : start + batch_size], padded


def bucket_of(length: int, longest: int) -> int:
    """The length that a text is padded to: 16, 32, 64, … and at most that of the longest text."""
    bucket = _STEP
    while bucket < length:
        bucket *= 2
    return max(min(bucket, longest), length)


def load_texts(dataset: DatasetRef, split: str, store: ArtifactStore, column: str = IDS) -> Texts:
    """Read a split's texts, or their pairs."""
    samples = load_samples(dataset, split, store)
    labels = samples[TARGET] if TARGET in samples.columns else None
    return Texts(samples.columns[column], samples.description.padding, labels)


def example_batch(dataset: DatasetRef, store: ArtifactStore, length: int, batch_size: int) -> dict[str, Tensor]:
    """`batch_size` rows of `length` tokens without padding: the test texts one after another, from the first again."""
    ids = load_texts(dataset, "test", store).ids.values
    positions = torch.arange(length * batch_size) % len(ids)
    rows = ids[positions].long().view(batch_size, length)
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
