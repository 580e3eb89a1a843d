"""Splits of a data set as tensors: written whole, and read memory-mapped in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.samples import SINGLE, TARGET, Description, read_description
from tasks.refs import DatasetRef

_UNKNOWN_TO_NUMPY = (
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
_STAND_INS = {1: torch.uint8, 2: torch.int16}  # by bytes


def write_split(folder: Path, split: str, columns: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, str]:
    """Write a split's columns, rows of one shape as a tensor and ragged ones as a sequence.

    Returns what `Description.types` says of them.
    """
    types = {}
    for name, given in columns.items():
        values = given
        if not isinstance(given, Tensor):
            axes = max(tensor.dim() for tensor in given)
            shapes = [[*tensor.shape, *[-1] * (axes - tensor.dim())] for tensor in given]
            np.save(folder / f"{split}.{name}.shapes.npy", np.array(shapes, dtype="<i8").reshape(len(given), axes))
            values = torch.cat([tensor.flatten() for tensor in given])
        assert isinstance(values, Tensor)
        values = values.detach().cpu().contiguous()
        if values.dtype in _UNKNOWN_TO_NUMPY:
            types[f"{split}.{name}"] = str(values.dtype).removeprefix("torch.")
            values = values.view(_STAND_INS[values.element_size()])
        np.save(folder / f"{split}.{name}.npy", values.numpy())
    return types


@dataclass(frozen=True)
class Column:
    """A column of a split: rows of one shape [N, …], or flat values with the shapes of their records."""

    values: Tensor
    shapes: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.values if self.shapes is None else self.shapes)

    def __getitem__(self, index: int) -> Tensor:
        """Return one row, or one record of a ragged column."""
        if self.shapes is None:
            return self.values[index]
        return self.values[self._starts[index] : self._starts[index + 1]].view(self.shapes[index])

    @cached_property
    def _starts(self) -> list[int]:
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes or ()]
        return [0, *np.cumsum(sizes).tolist()]


@dataclass(frozen=True)
class Batch:
    """Positional inputs and the target of some samples; ``rows`` are their numbers where they are out of order."""

    inputs: tuple[Tensor, ...]
    target: Tensor | None
    size: int
    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Samples:
    """One split, memory-mapped."""

    columns: Mapping[str, Column]
    description: Description
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, name: str) -> Tensor:
        """Return a column whose rows have one shape."""
        return self.columns[name].values

    @property
    def target(self) -> Tensor:
        """The targets of samples whose rows have one shape."""
        return self[TARGET]

    def batches(self, batch_size: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """Yield batches of `batch_size` samples, the last one smaller; a collate function's as it made them.

        Parameters
        ----------
        rows
            int64 [M], the samples in the order wanted; by default all of them, read where they lie without a copy.
        """
        names = self.description.inputs
        if self.description.collated:
            for index in range(len(self.columns[TARGET])):
                made = self.columns[TARGET][index]
                yield Batch(tuple(self.columns[name][index] for name in names), made, len(made))
            return
        target = self[TARGET] if TARGET in self.columns else None
        for start in range(0, self.size if rows is None else len(rows), batch_size):
            place = slice(start, start + batch_size)
            chosen = place if rows is None else rows[place]
            inputs = tuple(self._normalized(self[name][chosen]) for name in names)
            yield Batch(inputs, None if target is None else target[chosen], len(inputs[0]))

    def _normalized(self, values: Tensor) -> Tensor:
        """Turn pictures, uint8 [B, C, H, W], into float32, ``(value / 255 - mean) / std``; leave others alone."""
        if values.dtype != torch.uint8 or not self.description.mean:
            return values
        mean, std = (
            torch.tensor(each, dtype=torch.float32).view(1, -1, 1, 1)
            for each in (self.description.mean, self.description.std)
        )
        return values.float().div_(255).sub_(mean).div_(std)


def load_samples(dataset: DatasetRef, split: str, store: ArtifactStore) -> Samples:
    """Open a split without reading it; writing to its tensors never reaches the files.

    Raises
    ------
    InputError
        The data set has no such split.
    StoreError
        The artifact is not in the store.
    """
    folder, description = store.path(dataset.kind, dataset.digest), read_description(dataset, store)
    names = [path.name.split(".")[1] for path in sorted(folder.glob(f"{split}.*.npy")) if ".shapes." not in path.name]
    if not names:
        raise InputError(f"The data set has no split {split}: it has {', '.join(dataset.splits)}.")
    columns = {name: _open_column(folder, split, name, description.types.get(f"{split}.{name}", "")) for name in names}
    size = description.splits["test" if split == SINGLE else split]
    return Samples(columns, description, size)


def load_test(dataset: DatasetRef, store: ArtifactStore, *, apart: bool) -> Samples:
    """Open the test split, for calls with one row where a collate function would pad rows that run together."""
    collated = apart and read_description(dataset, store).collated
    return load_samples(dataset, SINGLE if collated else "test", store)


def _open_column(folder: Path, split: str, name: str, dtype: str) -> Column:
    # Copy-on-write: torch has no read-only tensors and warns about read-only arrays.
    array = np.load(folder / f"{split}.{name}.npy", mmap_mode="c", allow_pickle=False)
    values = torch.from_numpy(array)
    if dtype:
        values = values.view(getattr(torch, dtype))
    path = folder / f"{split}.{name}.shapes.npy"
    if not path.is_file():
        return Column(values)
    shapes = np.load(path, allow_pickle=False).tolist()
    return Column(values, tuple(tuple(side for side in shape if side >= 0) for shape in shapes))
