"""The one kind of data set: named columns by split, kept so that every machine sees the same samples.

An artifact of kind ``samples`` holds ``samples.json`` (`Description`) and a NumPy file for each column of each split,
``<split>.<column>.npy``. A ragged column is one whose records differ in shape, as texts and padded batches do. Its file
holds the values of all records in a row, and ``<split>.<column>.shapes.npy`` their shapes, int64 [records, axes].

Splits are read memory-mapped, as tensors in batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import digest_of, file_digest
from storage.errors import InputError
from tasks.refs import DatasetRef, Frozen

KIND = "samples"
DESCRIPTION = "samples.json"
TARGET = "row-target"  # with a hyphen, which no input of the same name has
SINGLE = "test-rows"  # the test split in batches of one, of data whose batches a collate function makes
_TOKENS = 16  # of a stream, in the place of a sample
_STAND_INS = {1: torch.uint8, 2: torch.int16}  # by bytes


class Description(Frozen):
    """The content of ``samples.json``."""

    splits: dict[str, int]  # numbers of samples, or of a corpus's tokens
    inputs: tuple[str, ...] = ()  # columns that a model takes, in calling order
    types: dict[str, str] = Field(default_factory=dict)  # by ``split.column``: torch's types that NumPy lacks
    collated: bool = False  # whether the records are batches, as a collate function made them
    classes: tuple[str, ...] = ()  # names by number
    vocabulary: int = 0  # number of token ids; 0 if inputs are not tokens
    sample_shape: tuple[int, ...] = ()  # without the batch axis
    # They normalize pictures as they are read, per channel, in 0…1; or they have standardized a table's features.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    features: tuple[str, ...] = ()  # a table's columns
    max_length: int = 0  # of texts, in tokens
    padding: int = 0  # the id that pads texts
    cut: int = 0  # texts that were longer
    skipped: tuple[str, ...] = ()  # pictures that could not be read
    duplicates: int = 0  # pictures that were there already
    notes: tuple[str, ...] = ()  # what a reader should know about how the samples were prepared
    calibration_digest: str = ""  # SHA-256 of the calibration split's files; "" if there is none


class ColumnWriter:
    """Appends rows of one shape to a NumPy file whose length is not known beforehand; a context that completes it."""

    def __init__(self, folder: Path, split: str, column: str, dtype: str, shape: tuple[int, ...] = ()) -> None:
        self.length = 0
        self._dtype, self._shape = dtype, shape
        self._stream = (folder / f"{split}.{column}.npy").open("wb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows [N, …] of the column's type and shape."""
        self._stream.write(np.ascontiguousarray(rows).data)
        self.length += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # NumPy pads a header for growth along the first axis, so that the final one fits over the first one.
        self._stream.seek(0)
        self._write_header()
        self._stream.close()

    def _write_header(self) -> None:
        header = {"descr": self._dtype, "fortran_order": False, "shape": (self.length, *self._shape)}
        np.lib.format.write_array_header_1_0(self._stream, header)


def find_or_write(
    store: ArtifactStore, made_from: Mapping[str, object], fill: Callable[[Path], Description]
) -> DatasetRef:
    """Find the data set that `made_from` decides, or let `fill` write its columns into a folder and describe them."""
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with store.create(KIND, digest, made_from) as folder:
            described = fill(folder)
            calibration = {path.name: file_digest(path) for path in sorted(folder.glob("calibration.*"))}
            if calibration:
                described = described.model_copy(update={"calibration_digest": digest_of({"files": calibration})})
            (folder / DESCRIPTION).write_text(described.model_dump_json(indent=1), encoding="utf-8")
    found = read_description(DatasetRef(kind=KIND, digest=digest, splits={}), store)
    alike = found.model_dump(include={"splits", "vocabulary", "sample_shape", "calibration_digest", "notes"})
    return DatasetRef(kind=KIND, digest=digest, classes=len(found.classes), skipped=len(found.skipped), **alike)


def read_description(dataset: DatasetRef, store: ArtifactStore) -> Description:
    """Read a data set's ``samples.json``."""
    path = store.path(dataset.kind, dataset.digest) / DESCRIPTION
    return Description.model_validate_json(path.read_text(encoding="utf-8"))


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
        try:
            array = values.numpy()
        except TypeError:  # NumPy lacks the type: bfloat16, float8
            types[f"{split}.{name}"] = str(values.dtype).removeprefix("torch.")
            array = values.view(_STAND_INS[values.element_size()]).numpy()
        np.save(folder / f"{split}.{name}.npy", array)
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

    def some(self, rows: Tensor) -> Column:
        """Copy these rows, int64 [M], into a column."""
        if self.shapes is None:
            return Column(self.values[rows])
        chosen = rows.tolist()
        return Column(torch.cat([self[row].flatten() for row in chosen]), tuple(self.shapes[row] for row in chosen))

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

    def some(self, count: int) -> Samples:
        """Draw `count` samples, the same ones each time; all of them if there are no more.

        A stream of tokens is not shuffled: `_TOKENS` of its first tokens stand for a sample. A collate function's
        batches stay whole, so that there may be some rows more.
        """
        records, is_stream = len(next(iter(self.columns.values()))), self.columns.keys() == {"tokens"}
        wanted = math.ceil(records * count * (_TOKENS if is_stream else 1) / self.size)
        if wanted >= records:
            return self
        drawn = torch.randperm(records, generator=torch.Generator().manual_seed(0))[:wanted].sort().values
        rows = torch.arange(wanted) if is_stream else drawn
        columns = {name: column.some(rows) for name, column in self.columns.items()}
        is_collated = self.description.collated
        size = sum(len(columns[TARGET][record]) for record in range(wanted)) if is_collated else wanted
        return replace(self, columns=columns, size=size)

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
    samples = Samples(columns, description, size)
    return samples.some(dataset.at_most) if dataset.at_most and split in ("test", SINGLE) else samples


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
