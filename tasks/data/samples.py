"""The one kind of data set: named columns by split, kept so that every machine sees the same samples.

An artifact of kind ``samples`` holds ``samples.json`` (`Description`) and a NumPy file for each column of each split,
``<split>.<column>.npy``. A ragged column is one whose records differ in shape, as texts and padded batches do. Its file
holds the values of all records in a row, and ``<split>.<column>.shapes.npy`` their shapes, int64 [records, axes].

This module needs no torch: tokenizing a corpus stays lean. `tasks.data.splits` reads and writes tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import digest_of, file_digest
from tasks.refs import DatasetRef, Frozen

KIND = "samples"
DESCRIPTION = "samples.json"
TARGET = "row-target"  # with a hyphen, which no input of the same name has
SINGLE = "test-rows"  # the test split in batches of one, of data whose batches a collate function makes


class Description(Frozen):
    """The content of ``samples.json``.

    Attributes
    ----------
    splits
        Number of samples (tokens of a corpus) by split.
    inputs
        Columns that a model takes, in calling order.
    types
        torch's names of types that NumPy lacks, by ``split.column``; such columns are kept as integers.
    collated
        Whether the records are batches, as a collate function made them.
    classes
        Names of the classes by number.
    vocabulary
        Number of token ids, 0 where inputs are not tokens.
    sample_shape
        Shape of one sample without the batch axis.
    mean, std
        Normalize pictures as they are read, per channel, in 0…1; or have standardized a table's ``features``.
    features
        A table's columns.
    max_length, padding, cut
        Of texts: the longest in tokens, the id that pads, and how many texts were cut.
    skipped, duplicates
        Of pictures: those that could not be read, and how many were there already.
    notes
        What a reader should know about how the samples were prepared.
    calibration_digest
        SHA-256 of the calibration split's files; "" where there is none.
    """

    splits: dict[str, int]
    inputs: tuple[str, ...] = ()
    types: dict[str, str] = Field(default_factory=dict)
    collated: bool = False
    classes: tuple[str, ...] = ()
    vocabulary: int = 0
    sample_shape: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    features: tuple[str, ...] = ()
    max_length: int = 0
    padding: int = 0
    cut: int = 0
    skipped: tuple[str, ...] = ()
    duplicates: int = 0
    notes: tuple[str, ...] = ()
    calibration_digest: str = ""


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
    return DatasetRef(
        kind=KIND,
        digest=digest,
        splits=found.splits,
        classes=len(found.classes),
        vocabulary=found.vocabulary,
        sample_shape=found.sample_shape,
        calibration_digest=found.calibration_digest,
        skipped=len(found.skipped),
        notes=found.notes,
    )


def read_description(dataset: DatasetRef, store: ArtifactStore) -> Description:
    """Read a data set's ``samples.json``."""
    path = store.path(dataset.kind, dataset.digest) / DESCRIPTION
    return Description.model_validate_json(path.read_text(encoding="utf-8"))
