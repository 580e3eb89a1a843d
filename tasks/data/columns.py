"""Read columns from Parquet, CSV and JSON Lines files, without torch, because the command line asks for their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from storage.errors import InputError
from tasks.environment.libraries import reported_as
from tasks.workload.base import TableFile

_READERS: Mapping[str, Callable[[Path], pa.Table]] = {
    "parquet": pq.read_table,
    "csv": pyarrow.csv.read_csv,
    "jsonl": pyarrow.json.read_json,
}


def read_columns(path: Path, data: TableFile, names: Sequence[str]) -> pa.Table:
    """Read the named columns and, if `data.split` is set, the split column; refuse missing values."""
    columns = list(dict.fromkeys([*names, *([data.split] if data.split else [])]))
    table = _read(path, data.kind)
    if lacking := [name for name in columns if name not in table.column_names]:
        raise InputError(
            f"{path} lacks these columns: {', '.join(lacking)}.",
            hint=f"Correct the column names in [data]. Available columns: {', '.join(table.column_names)}.",
        )
    table = table.select(columns)
    if gaps := [name for name in table.column_names if table[name].null_count]:
        raise InputError(
            f"{path} has missing values in these columns: {', '.join(gaps)}.",
            hint="Fill in the values, or remove the affected rows.",
        )
    return table


def columns_of(path: Path) -> dict[str, bool]:
    """Return whether each column is numeric; the suffix of `path` determines the file format."""
    number_types = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
    schema = _read(path, path.suffix.removeprefix(".")).schema
    return {column.name: any(is_type(column.type) for is_type in number_types) for column in schema}


def _read(path: Path, kind: str) -> pa.Table:
    hint = "Correct the file, or set data.kind to the file's format."
    with reported_as(f"{path} cannot be read as a {kind} file", hint):
        return _READERS[kind](path)
