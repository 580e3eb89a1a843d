"""Reading a Parquet, CSV or JSON lines file for a domain: named columns, and which rows belong to which split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from storage.errors import InputError, first_line
from tasks.workload.base import TableFile

SPLITS = ("train", "valid", "calibration", "test")
# Where the file is and how much of it may be read decides nothing.
NOT_CONTENT = {"uri", "sha256", "max_bytes"}
_READERS: Mapping[str, Callable[[Path], pa.Table]] = {
    "parquet": pq.read_table,
    "csv": pyarrow.csv.read_csv,
    "jsonl": pyarrow.json.read_json,
}


def read_columns(path: Path, data: TableFile, names: Sequence[str]) -> pa.Table:
    """The columns of those names, and the one that says the split.

    Raises
    ------
    InputError
        The file is no such table, lacks a column, or has missing values.
    """
    wanted = list(dict.fromkeys([*names, *([data.split] if data.split else [])]))
    try:
        table = _READERS[data.kind](path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a {data.kind} file: {first_line(error)}.") from error
    if lacking := [name for name in wanted if name not in table.column_names]:
        raise InputError(
            f"{path} has no column {', '.join(lacking)}.", hint=f"Its columns: {', '.join(table.column_names)}."
        )
    table = table.select(wanted)
    if gaps := [name for name in table.column_names if table[name].null_count]:
        raise InputError(
            f"{path} has missing values in: {', '.join(gaps)}.", hint="Fill them, or leave out such rows or columns."
        )
    return table


def columns_of(path: Path) -> dict[str, bool]:
    """Columns of a table by the ending of its name, and whether they hold numbers.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    try:
        match path.suffix:
            case ".parquet":
                schema = pq.read_schema(path)
            case ".csv":
                schema = pyarrow.csv.open_csv(path).schema
            case _:
                schema = pyarrow.json.open_json(path).schema
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as a table: {first_line(error)}.") from error
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
    return {column.name: any(holds(column.type) for holds in numbers) for column in schema}


def rows_of_splits(table: pa.Table, data: TableFile) -> dict[str, npt.NDArray[np.int64]]:
    """Row numbers of each split.

    Raises
    ------
    InputError
        The column of splits names another one, or nothing is left for training, calibration or test.
    """
    if data.split:
        named = np.array([str(value) for value in table[data.split].to_pylist()])
        if unknown := sorted(set(named.tolist()) - set(SPLITS)):
            raise InputError(
                f'The column "{data.split}" names splits that there are not: {", ".join(unknown[:5])}.',
                hint=f"Expected {', '.join(SPLITS)}.",
            )
        rows = {split: np.flatnonzero(named == split) for split in SPLITS}
    else:
        order = np.random.default_rng(data.seed).permutation(table.num_rows)
        held = [round(share * len(order)) for share in (data.test_share, data.valid_share)]
        test, valid, train = np.split(order, np.cumsum(held))
        rows = {"train": train, "valid": valid, "calibration": train[:0], "test": test}
    if not len(rows["calibration"]):
        rows["calibration"] = rows["train"][: data.calibration]
    if lacking := [split for split in ("train", "calibration", "test") if not len(rows[split])]:
        counts = {split: len(found) for split, found in rows.items()}
        raise InputError(
            f"The table leaves no rows for: {', '.join(lacking)} (found: {counts}).", hint="Provide more rows."
        )
    return rows
