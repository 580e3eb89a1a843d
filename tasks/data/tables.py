"""Split the rows of a table, and prepare features and targets as samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from storage.errors import InputError
from storage.transfer import fetch
from tasks.data.columns import read_columns
from tasks.data.samples import TARGET, Description, absence_note, find_or_write, numbered, write_split
from tasks.data.sections import TableData
from tasks.environment.libraries import reported_as
from tasks.environment.sources import code_digest
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef
from tasks.workload.base import TableFile

SPLITS = ("train", "valid", "calibration", "test")
# Keys that do not affect the data set's content.
NOT_CONTENT = {"uri", "sha256"}


def rows_of_splits(table: pa.Table, data: TableFile) -> dict[str, npt.NDArray[np.int64]]:
    """Return each split's row indices, int64 [M]; refuse unknown splits, and empty splits except ``valid``."""
    if data.split:
        names = np.array([str(value) for value in table[data.split].to_pylist()])
        if unknown := sorted(set(names.tolist()) - set(SPLITS)):
            raise InputError(
                f'The column "{data.split}" contains unknown splits: {", ".join(unknown[:5])}.',
                hint=f"Use only these splits: {', '.join(SPLITS)}.",
            )
        rows = {split: np.flatnonzero(names == split) for split in SPLITS}
    else:
        order = np.random.default_rng(data.seed).permutation(table.num_rows)
        sizes = [round(share * len(order)) for share in (data.test_share, data.valid_share)]
        test, valid, train = np.split(order, np.cumsum(sizes))
        rows = {"train": train, "valid": valid, "calibration": train[:0], "test": test}
    if not len(rows["calibration"]):
        rows["calibration"] = rows["train"][: data.calibration]
    if lacking := [split for split in ("train", "calibration", "test") if not len(rows[split])]:
        counts = ", ".join(f"{len(numbers):,} for {split}" for split, numbers in rows.items())
        raise InputError(
            f"No rows remain for these splits: {', '.join(lacking)}. Rows found: {counts}.", hint="Provide more rows."
        )
    return rows


def prepare_table(data: TableData, name: str, workspace: Workspace) -> DatasetRef:
    """Find a table's samples in the store, or read, split and standardize it; `name` is the model's input."""
    folder = workspace.store.root / "downloads"
    with fetch(data.uri, folder, sha256=data.sha256, progress=workspace.progress) as source:
        made_from: dict[str, object] = {
            "data": data.model_dump(mode="json", exclude=NOT_CONTENT),
            "sha256": source.sha256,
            "input": name,
            "libraries": {module.__name__: module.__version__ for module in (pa, torch)},
            "code": code_digest(__name__),
        }

        def fill(folder: Path) -> Description:
            return _write(read_columns(source.path(), data, [*data.features, data.target]), data, name, folder)

        return find_or_write(workspace.store, made_from, fill)


def _precision(kind: pa.DataType) -> float:
    """Return the relative rounding error of a column type; only floats are rounded."""
    return float(np.finfo(f"f{kind.bit_width // 8}").eps) if pa.types.is_floating(kind) else 0.0


def _write(table: pa.Table, data: TableData, name: str, folder: Path) -> Description:
    features = np.stack([_numbers(table[feature], feature) for feature in data.features], axis=1)
    target, classes, notes = _target(table[data.target], data)
    rows = rows_of_splits(table, data)
    mean, std = np.zeros(features.shape[1]), np.ones(features.shape[1])
    if data.standardize:
        train = features[rows["train"]]
        # Numbers that differ by rounding alone would be divided by their rounding error.
        precision = np.array([_precision(table[feature].type) for feature in data.features])
        constant = np.ptp(train, 0) <= 2 * precision * np.abs(train).max(0)
        mean, std = train.mean(0), np.where(constant, 1.0, train.std(0))
        if constant.any():
            names = ", ".join(name for name, flag in zip(data.features, constant, strict=True) if flag)
            notes = (*notes, f"these columns are constant in the train split and were not scaled: {names}")
    inputs = torch.from_numpy(((features - mean) / std).astype(np.float32))
    rows = {split: numbers for split, numbers in rows.items() if len(numbers)}
    for split, numbers in rows.items():
        write_split(folder, split, {name: inputs[numbers], TARGET: target[numbers]})
    return Description(
        splits={split: len(numbers) for split, numbers in rows.items()},
        inputs=(name,),
        sample_shape=tuple(inputs.shape[1:]),
        features=data.features,
        mean=tuple(mean.tolist()) if data.standardize else (),
        std=tuple(std.tolist()) if data.standardize else (),
        classes=classes,
        notes=notes,
    )


def _numbers(column: pa.ChunkedArray[pa.Scalar[pa.DataType]], name: str) -> npt.NDArray[np.float64]:
    failed = f'The column "{name}" of type {column.type} cannot be converted to numbers'
    with reported_as(failed, "Remove the column from data.features, or encode it as numbers."):
        values = np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(
            f'The column "{name}" contains NaN or infinities.', hint="Correct or remove the affected rows."
        )
    return values


def _target(
    column: pa.ChunkedArray[pa.Scalar[pa.DataType]], data: TableData
) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Return the targets, [N], the class names, and notes; texts and ``data.classes`` become class numbers."""
    if not data.classes:
        if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
            return torch.from_numpy(_numbers(column, data.target).astype(np.float32)), (), ()
        if pa.types.is_integer(column.type):
            return torch.from_numpy(np.asarray(column.cast(pa.int64()).to_numpy()).copy()), (), ()
    labels = [str(value) for value in column.cast(pa.string()).to_pylist()]
    found = set(labels)
    # A Boolean has two classes, even if one of them does not occur.
    possible = {"false", "true"} if pa.types.is_boolean(column.type) else found
    classes = numbered(possible, data.classes, f'The column "{data.target}"')
    numbers = {label: number for number, label in enumerate(classes)}
    return torch.tensor([numbers[label] for label in labels]), classes, absence_note(classes, found)
