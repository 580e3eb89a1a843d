"""Data sets, stored as artifacts: ``samples.json`` (see `Description`), and a NumPy file for each column of a split.

In a ragged column, records have different shapes, which ``<split>.<column>.shapes.npy`` contains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import digest_of, file_digest
from storage.errors import InputError, did_you_mean
from tasks.values.refs import DatasetRef, Frozen

KIND = "samples"
DESCRIPTION = "samples.json"
TARGET = "row-target"  # name of the target column; the hyphen prevents a clash with input names, which are identifiers
_STREAM = {"tokens"}  # columns of a stream of tokens
ROWS = "-rows"  # suffix of a split that contains another split's samples as collated batches of one row
IGNORED = -100  # target that cross-entropy ignores
_TOKENS_PER_SAMPLE = 16  # number of stream tokens that count as one sample
SORTED = "the classes found, in sorted order; the order must be that of the model's outputs"
_MOST_LINES, LONGEST_LINE = 10, 200


class Description(Frozen):
    """The contents of ``samples.json``."""

    splits: dict[str, int]  # number of samples (for a corpus, tokens), keyed by split
    inputs: tuple[str, ...] = ()  # columns that the model takes as inputs, in argument order
    collated: bool = False  # whether the records are batches from a collate function
    classes: tuple[str, ...] = ()  # class names, indexed by class number
    label_range: tuple[int, int] | None = None  # smallest and largest integer target in any split, without IGNORED
    vocabulary: int = 0  # number of token ids; 0 if the inputs are not tokens
    sample_shape: tuple[int, ...] = ()  # shape of a sample, without the batch axis
    # Images are scaled to the range 0…1 and normalized when they are read, tables are standardized when stored.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    features: tuple[str, ...] = ()  # names of a table's feature columns
    max_length: int = 0  # maximum length of texts, in tokens
    padding: int = 0  # id of the token that pads texts
    cut: int = 0  # number of texts that were cut to the maximum length
    skipped: tuple[str, ...] = ()  # names of images that could not be read
    notes: tuple[str, ...] = ()  # notes for the user about how the samples were prepared
    calibration_digest: str = ""  # SHA-256 of the calibration split's files; ``""`` if the split is missing


class ColumnWriter:
    """A context manager that appends rows of equal shape to a NumPy file whose final length is unknown."""

    def __init__(self, folder: Path, split: str, column: str, dtype: str, shape: tuple[int, ...] = ()) -> None:
        self.length = 0
        self._dtype, self._shape = dtype, shape
        self._stream = (folder / f"{split}.{column}.npy").open("wb")
        self._write_header()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows, [N, …], that have the column's type and shape."""
        self._stream.write(np.ascontiguousarray(rows).data)
        self.length += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # NumPy leaves room in the header for a longer first axis, so the final header is as long as the initial header.
        self._stream.seek(0)
        self._write_header()
        self._stream.close()

    def _write_header(self) -> None:
        header = {"descr": self._dtype, "fortran_order": False, "shape": (self.length, *self._shape)}
        np.lib.format.write_array_header_1_0(self._stream, header)


def find_or_write(
    store: ArtifactStore, made_from: Mapping[str, object], fill: Callable[[Path], Description]
) -> DatasetRef:
    """Find the data set that `made_from` identifies, or create it; `fill` writes the columns to a folder."""
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with store.create(KIND, digest, made_from) as folder:
            description = fill(folder).model_copy(update={"label_range": _label_range(folder)})
            if files := {path.name: file_digest(path) for path in sorted(folder.glob("calibration.*"))}:
                description = description.model_copy(update={"calibration_digest": digest_of({"files": files})})
            (folder / DESCRIPTION).write_text(description.model_dump_json(indent=1), encoding="utf-8")
    stored = read_description(DatasetRef(kind=KIND, digest=digest, splits={}), store)
    shared = stored.model_dump(include={"splits", "vocabulary", "sample_shape", "calibration_digest", "notes"})
    columns = {path.name.split(".")[1] for path in store.path(KIND, digest).glob("*.npy")}
    return DatasetRef(
        kind=KIND,
        digest=digest,
        classes=len(stored.classes),
        skipped=len(stored.skipped),
        tokens_per_sample=_TOKENS_PER_SAMPLE if columns == _STREAM else 1,
        **shared,
    )


def _label_range(folder: Path) -> tuple[int, int] | None:
    ends: list[int] = []
    for path in folder.glob(f"*.{TARGET}.npy"):
        labels = np.load(path, mmap_mode="r", allow_pickle=False).reshape(-1)
        labels = labels[labels != IGNORED]
        if labels.dtype.kind in "iu" and len(labels):
            ends += [int(labels.min()), int(labels.max())]
    return (min(ends), max(ends)) if ends else None


def read_description(dataset: DatasetRef, store: ArtifactStore) -> Description:
    """Read a data set's ``samples.json``."""
    path = store.path(dataset.kind, dataset.digest) / DESCRIPTION
    return Description.model_validate_json(path.read_text(encoding="utf-8"))


def write_split(folder: Path, split: str, columns: Mapping[str, Tensor | Sequence[Tensor]]) -> None:
    """Write a split's columns to files."""
    for name, column in columns.items():
        values = column
        if not isinstance(column, Tensor):
            axes = max(tensor.dim() for tensor in column)
            shapes = [[*tensor.shape, *[-1] * (axes - tensor.dim())] for tensor in column]
            np.save(folder / f"{split}.{name}.shapes.npy", np.array(shapes, dtype="<i8").reshape(len(column), axes))
            values = torch.cat([tensor.flatten() for tensor in column])
        assert isinstance(values, Tensor)
        np.save(folder / f"{split}.{name}.npy", values.detach().cpu().contiguous().numpy())


@dataclass(frozen=True)
class Column:
    """One column of a split; in a ragged column, ``values`` contains the flattened records."""

    values: Tensor
    shapes: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.values if self.shapes is None else self.shapes)

    def __getitem__(self, index: int) -> Tensor:
        """Return one row, or one record of a ragged column."""
        if self.shapes is None:
            return self.values[index]
        return self.values[self._starts[index] : self._starts[index + 1]].view(self.shapes[index])

    def take(self, rows: Tensor) -> Column:
        """Copy the rows with the given indices, int64 [M], into a new column."""
        if self.shapes is None:
            return Column(self.values[rows])
        numbers = rows.tolist()
        return Column(torch.cat([self[row].flatten() for row in numbers]), tuple(self.shapes[row] for row in numbers))

    @cached_property
    def _starts(self) -> list[int]:
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes or ()]
        return [0, *np.cumsum(sizes).tolist()]


@dataclass(frozen=True)
class Batch:
    """A batch of samples: the inputs, in argument order, and the targets."""

    inputs: tuple[Tensor, ...]
    target: Tensor | None
    size: int
    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Samples:
    """A memory-mapped split."""

    columns: Mapping[str, Column]
    description: Description
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, name: str) -> Tensor:
        """Return a column's values."""
        return self.columns[name].values

    @property
    def target(self) -> Tensor:
        """The values of the target column."""
        return self[TARGET]

    def batches(self, batch_size: int, rows: Tensor | None = None) -> Iterator[Batch]:
        """Yield batches of the samples in `rows`, int64 [M]; batches from a collate function are yielded unchanged."""
        names = self.description.inputs
        if self.description.collated:
            for index in range(len(self.columns[TARGET])):
                batch_target = self.columns[TARGET][index]
                yield Batch(tuple(self.columns[name][index] for name in names), batch_target, len(batch_target))
            return
        target = self[TARGET] if TARGET in self.columns else None
        for start in range(0, self.size if rows is None else len(rows), batch_size):
            span = slice(start, start + batch_size)
            batch_rows = span if rows is None else rows[span]
            inputs = tuple(self._normalized(self[name][batch_rows]) for name in names)
            yield Batch(inputs, None if target is None else target[batch_rows], len(inputs[0]))

    def draw(self, count: int) -> Samples:
        """Draw `count` samples reproducibly; a stream is cut, and batches from a collate function are not divided."""
        records, is_stream = len(next(iter(self.columns.values()))), self.columns.keys() == _STREAM
        size = math.ceil(records * count * (_TOKENS_PER_SAMPLE if is_stream else 1) / self.size)
        if size >= records:
            return self
        drawn = torch.randperm(records, generator=torch.Generator().manual_seed(0))[:size].sort().values
        rows = torch.arange(size) if is_stream else drawn
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        if self.description.collated:
            size = sum(len(columns[TARGET][record]) for record in range(size))
        return replace(self, columns=columns, size=size)

    def _normalized(self, values: Tensor) -> Tensor:
        """Normalize images, uint8 [B, C, H, W], to float32 ``(value / 255 - mean) / std``; do not change other data."""
        if values.dtype != torch.uint8 or not self.description.mean:
            return values
        mean, std = (
            torch.tensor(by_channel).view(1, -1, 1, 1) for by_channel in (self.description.mean, self.description.std)
        )
        return values.float().div_(255).sub_(mean).div_(std)


def load_samples(dataset: DatasetRef, split: str, store: ArtifactStore) -> Samples:
    """Open a split; ``dataset.judged_on`` and ``dataset.at_most`` choose and limit the test samples."""
    folder, description = store.path(dataset.kind, dataset.digest), read_description(dataset, store)
    is_judged = split.removesuffix(ROWS) == "test"
    split = dataset.judged_on + split.removeprefix("test") if is_judged else split
    names = [path.name.split(".")[1] for path in sorted(folder.glob(f"{split}.*.npy")) if ".shapes." not in path.name]
    if not names:
        raise InputError(
            f"The data set does not contain the {split} split.",
            hint=f"Use one of these splits: {', '.join(dataset.splits)}.",
        )
    columns = {name: _open_column(folder, split, name) for name in names}
    size = description.splits[split.removesuffix(ROWS)]
    samples = Samples(columns, description, size)
    return samples.draw(dataset.at_most) if dataset.at_most and is_judged else samples


def load_test(dataset: DatasetRef, store: ArtifactStore, *, singly: bool) -> Samples:
    """Open the test split; if `singly` is true, collated batches have one row each, so that rows are not padded."""
    collated = singly and read_description(dataset, store).collated
    return load_samples(dataset, f"test{ROWS}" if collated else "test", store)


def _open_column(folder: Path, split: str, name: str) -> Column:
    # Map the file copy-on-write, because torch lacks read-only tensors and warns about read-only arrays.
    values = torch.from_numpy(np.load(folder / f"{split}.{name}.npy", mmap_mode="c", allow_pickle=False))
    path = folder / f"{split}.{name}.shapes.npy"
    if not path.is_file():
        return Column(values)
    shapes = np.load(path, allow_pickle=False).tolist()
    return Column(values, tuple(tuple(side for side in shape if side >= 0) for shape in shapes))


def numbered(found: Collection[str], stated: Sequence[str], source: str, key: str = "data.classes") -> tuple[str, ...]:
    """Return the class names, indexed by class number: `stated` or, by default, the found names in sorted order."""
    if stated and (unknown := sorted(set(found) - set(stated))):
        raise InputError(
            f"{source} contains classes that {key} lacks: {listed(unknown)}{did_you_mean(unknown[0], stated)}.",
            hint=f"Correct these labels, or add the classes to {key} in the order of the model's outputs.",
        )
    return tuple(stated or sorted(found))


def absence_note(classes: Sequence[str], found: Collection[str]) -> tuple[str, ...]:
    """Return a note about classes without samples, or ``()`` if there are none."""
    absent = [name for name in classes if name not in found]
    return (f"these classes have no samples: {listed(absent)}",) if absent else ()


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines; if lines are omitted, append a line with the number of omitted lines."""
    rest = len(lines) - _MOST_LINES
    return [line[:LONGEST_LINE] for line in lines[:_MOST_LINES]] + [f"and {rest} more"] * (rest > 0)


def listed(names: Sequence[str]) -> str:
    """Join quoted names."""
    return ", ".join(shortened([f'"{name}"' for name in names]))
