"""Prepared texts: token ids in the store, with the tokenizer that made them, so that every machine sees the same.

An artifact of kind ``texts`` holds ``texts.json``, ``tokenizer.json`` and a safetensors file for each split: the ids of
all its texts in a row (``ids``, int32), where each begins and the last ends (``starts``, int64 [N + 1]), classes
(``labels``, int64 [N]) where there are any, and the same of ``pair.ids`` and ``pair.starts`` where texts have pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from storage.artifacts import ArtifactStore
from tasks.refs import DatasetRef, Frozen
from tasks.tensor_files import save_tensors

KIND = "texts"
DESCRIPTION, REFERENCE, TOKENIZER = "texts.json", "dataset.json", "tokenizer.json"
_STEP = 16  # lengths are padded to multiples of it, or of what doubles it, up to the longest


class Description(Frozen):
    """The content of ``texts.json``: class names by number, the longest text, the padding, and how many were cut."""

    labels: tuple[str, ...] = ()
    max_length: int
    padding: int
    cut: int = 0


@dataclass(frozen=True)
class Texts:
    """A split: ids int32 [T] of N texts in a row, starts int64 [N + 1], and labels int64 [N] or None."""

    ids: Tensor
    starts: Tensor
    padding: int
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, index: int) -> Tensor:
        """One text's ids, int64 [T]."""
        return self.ids[self.starts[index] : self.starts[index + 1]].long()

    def batch(self, rows: Sequence[int], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Ids and mask, int64 [B, T], of some texts, padded to the longest of them, or to `length` and cut there."""
        texts = [self.row(row)[:length] for row in rows]
        width = length or max(map(len, texts))
        ids = torch.full((len(texts), width), self.padding)
        mask = torch.zeros((len(texts), width), dtype=torch.int64)
        for place, text in enumerate(texts):
            ids[place, : len(text)] = text
            mask[place, : len(text)] = 1
        return ids, mask

    def buckets(self, batch_size: int) -> Iterator[tuple[list[int], int]]:
        """Rows that run together, and the length that they are padded to: few lengths, so that few are compiled for.

        Shortest first; rows of one length keep their order.
        """
        lengths = (self.starts[1:] - self.starts[:-1]).tolist()
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


def write_split(path: Path, columns: Mapping[str, Sequence[Sequence[int]]], labels: Sequence[int] | None) -> None:
    """Write a split: token ids of its texts by prefix, "" for the texts themselves."""
    tensors = {} if labels is None else {"labels": torch.tensor(labels, dtype=torch.int64)}
    for prefix, rows in columns.items():
        lengths = torch.tensor([0, *map(len, rows)])
        tensors[f"{prefix}starts"] = lengths.cumsum(0)
        tensors[f"{prefix}ids"] = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    save_tensors(tensors, path)


def read_description(dataset: DatasetRef, store: ArtifactStore) -> Description:
    """Read a data set's ``texts.json``."""
    path = store.path(dataset.kind, dataset.digest) / DESCRIPTION
    return Description.model_validate_json(path.read_text(encoding="utf-8"))


def load_texts(dataset: DatasetRef, split: str, store: ArtifactStore, prefix: str = "") -> Texts:
    """Read a split's texts, or with the prefix ``pair.`` their pairs."""
    tensors = load_file(store.path(dataset.kind, dataset.digest) / f"{split}.safetensors")
    padding = read_description(dataset, store).padding
    return Texts(tensors[f"{prefix}ids"], tensors[f"{prefix}starts"], padding, tensors.get("labels"))


def example_batch(dataset: DatasetRef, store: ArtifactStore, length: int, batch_size: int) -> dict[str, Tensor]:
    """`batch_size` rows of `length` tokens without padding: the test texts one after another, from the first again."""
    ids = load_texts(dataset, "test", store).ids
    positions = torch.arange(length * batch_size) % len(ids)
    rows = ids[positions].long().view(batch_size, length)
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
