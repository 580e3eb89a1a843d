"""Rows are checked before they are written: names, types, nulls, finiteness, ranges and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import StoreError
from storage.results.tables import Column, Table

# Unit -> smallest and largest value that can be right. Differences have the metric's own unit and no bounds.
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("seconds", "bytes", "samples", "tokens", "parameters", "modules", "workloads"), (0, float("inf"))),
    **dict.fromkeys(("candidates", "blocks", "calls", "launches", "rounds"), (0, float("inf"))),
    **dict.fromkeys(("attempts", "threads", "rank"), (1, float("inf"))),
    "ratio": (5e-324, float("inf")),
    "share": (0, 1),
}

_CHOICES: dict[tuple[str, str], tuple[str, ...]] = {
    ("runs", "status"): ("completed", "failed", "cancelled"),
    ("runs", "profile"): ("quick", "standard", "full"),
    ("measurements", "status"): ("ok", "failed"),
    ("measurements", "setting"): ("primary", "throughput", "a/a"),
    ("measurements", "profile"): ("quick", "standard", "full"),
    ("measurements", "verdict"): ("valid", "inconclusive", "not-measured"),
    ("promotions", "decision"): ("promote", "pass", "hold", "reject"),
}


def validated(table: Table, rows: Sequence[Mapping[str, Any]], run_id: str) -> pa.Table:
    """Turn rows into an Arrow table of the table's schema, sorted by its order.

    Raises
    ------
    StoreError
        A column is unknown, of the wrong type, NULL where it may not be, not finite or out of range; a row belongs
        to another run; two rows share a key. The message names table, column and row.
    """
    known = {column.name for column in table.columns}
    for position, row in enumerate(rows):
        if unknown := sorted(set(row) - known):
            raise _refused(table, f"row {position} has unknown columns {unknown}")
        if row.get("run_id") != run_id:
            raise _refused(table, f"row {position} has run_id {row.get('run_id')!r} in a file of run {run_id!r}")
    arrays = [_array(table, column, [row.get(column.name) for row in rows]) for column in table.columns]
    whole = pa.Table.from_arrays(arrays, schema=table.schema)
    _check_key(table, whole)
    return whole.sort_by([(name, "ascending") for name in table.order])


def _array(table: Table, column: Column, values: list[Any]) -> Any:
    try:
        array = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _refused(table, f"column {column.name} is no {column.type}: {error}") from error
    if not column.nullable and array.null_count:
        raise _refused(table, f"column {column.name} is NULL in row {_first(pc.is_null(array))}")
    _check_numbers(table, column, array)
    choices = _CHOICES.get((table.name, column.name))
    if choices:
        wrong = pc.invert(pc.is_in(array.drop_null(), value_set=pa.array(choices)))
        if pc.any(wrong).as_py():
            value = array.drop_null()[_first(wrong)].as_py()
            raise _refused(table, f"column {column.name} is {value!r}; expected one of {', '.join(choices)}")
    return array


def _check_numbers(table: Table, column: Column, array: Any) -> None:
    numbers = _numbers(array)
    if numbers is None or not len(numbers):
        return
    if pa.types.is_floating(numbers.type) and not pc.all(pc.is_finite(numbers)).as_py():
        raise _refused(
            table,
            f"column {column.name} holds NaN or an infinity",
            "Leave the value out (NULL) where there is none: NaN would sort first and be every maximum.",
        )
    low, high = _BOUNDS.get(column.unit, (-float("inf"), float("inf")))
    smallest, largest = pc.min(numbers).as_py(), pc.max(numbers).as_py()
    if smallest < low or largest > high:
        wrong = smallest if smallest < low else largest
        raise _refused(table, f"column {column.name} is {wrong}, out of range for {column.unit}")


def _numbers(array: Any) -> Any | None:
    if pa.types.is_map(array.type):
        array = array.items
    elif pa.types.is_list(array.type):
        array = array.flatten()
    is_number = pa.types.is_floating(array.type) or pa.types.is_integer(array.type)
    return array.drop_null() if is_number else None


def _check_key(table: Table, whole: pa.Table) -> None:
    distinct = whole.select(list(table.key)).group_by(list(table.key)).aggregate([])
    if distinct.num_rows != whole.num_rows:
        doubled = whole.num_rows - distinct.num_rows
        raise _refused(table, f"{doubled} rows share ({', '.join(table.key)}) with another row")


def _first(flags: Any) -> int:
    position: int = pc.index(flags, True).as_py()
    return position


def _refused(table: Table, what: str, hint: str = "") -> StoreError:
    return StoreError(f"The {table.name} rows were refused: {what}.", hint=hint or "Nothing was written.")
