"""Tables: columns of a Parquet, CSV or JSON lines file as features and a target, cut into splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError, InputError, first_line
from storage.transfer import fetch
from tasks.domains.custom.factory_data import forward_parameters
from tasks.domains.custom.samples import Batch, Description
from tasks.domains.custom.sections import CustomWorkload, TableData
from tasks.domains.custom.writing import Split, find_or_write
from tasks.domains.table_file import NOT_CONTENT, read_columns, rows_of_splits

if TYPE_CHECKING:
    from tasks.job import Workspace
    from tasks.refs import DatasetRef


def prepare_table(workload: CustomWorkload, data: TableData, model: nn.Module, workspace: Workspace) -> DatasetRef:
    """Read, split and standardize the table, or find it in the store.

    Raises
    ------
    InputError
        The file is missing or broken, lacks a column, or has missing values or nothing for a split.
    ConfigurationError
        The model takes no input.
    """
    parameters = forward_parameters(model)
    if not parameters:
        raise ConfigurationError("The model's forward takes no input.", hint="It needs one: float32 [rows, features].")
    name = parameters[0].removeprefix("*")
    place = workspace.store.root / "downloads"
    with fetch(data.uri, place, sha256=data.sha256, max_bytes=data.max_bytes, progress=workspace.progress) as source:
        made_from: dict[str, object] = {
            "data": data.model_dump(mode="json", exclude=NOT_CONTENT),
            "sha256": source.sha256,
            "input": name,
            "pyarrow": pa.__version__,
        }

        def make() -> tuple[Description, Mapping[str, Split]]:
            table = read_columns(source.path(), data, [*data.features, data.target])
            return _splits(table, data, name)

        return find_or_write(workspace.store, made_from, make)


def _splits(table: pa.Table, data: TableData, name: str) -> tuple[Description, Mapping[str, Split]]:
    columns = [_numbers(table[feature], feature) for feature in data.features]
    target, classes = _target(table[data.target], data.target)
    rows = rows_of_splits(table, data)
    features = np.stack(columns, axis=1)
    mean, std = np.zeros(features.shape[1]), np.ones(features.shape[1])
    if data.standardize:
        mean, std = features[rows["train"]].mean(0), features[rows["train"]].std(0)
        std[std == 0] = 1.0  # a constant column says nothing, whatever its scale
    inputs = torch.from_numpy(((features - mean) / std).astype(np.float32))
    return (
        Description(
            inputs=(name,),
            features=data.features,
            mean=tuple(mean.tolist()) if data.standardize else (),
            std=tuple(std.tolist()) if data.standardize else (),
            classes=classes,
        ),
        {
            split: [Batch({name: inputs[chosen]}, target[chosen])]
            for split, chosen in ((split, torch.from_numpy(found)) for split, found in rows.items())
            if len(chosen)
        },
    )


def _numbers(column: pa.ChunkedArray[pa.Scalar[pa.DataType]], name: str) -> npt.NDArray[np.float64]:
    try:
        values = np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    except pa.ArrowException as error:
        raise InputError(
            f'The column "{name}" is of type {column.type}, not numbers: {first_line(error)}.',
            hint="Leave it out of data.features, or encode it as numbers.",
        ) from error
    if not np.isfinite(values).all():
        raise InputError(f'The column "{name}" holds NaN or infinities.', hint="Fill them, or leave out such rows.")
    return values


def _target(column: pa.ChunkedArray[pa.Scalar[pa.DataType]], name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Floats as float32 [N], integers as int64 [N], text and truth values as numbers of their sorted distinct ones."""
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return torch.from_numpy(_numbers(column, name).astype(np.float32)), ()
    if pa.types.is_integer(column.type):
        return torch.from_numpy(np.asarray(column.cast(pa.int64()).to_numpy()).copy()), ()
    labels = [str(value) for value in column.cast(pa.string()).to_pylist()]
    classes = tuple(sorted(set(labels)))
    numbers = {label: number for number, label in enumerate(classes)}
    return torch.tensor([numbers[label] for label in labels]), classes
