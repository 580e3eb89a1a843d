"""Check the values of rows, and keep the valid parts of invalid rows.

An invalid number becomes NULL, and ``unknown`` gives the reason, so that the other values and rows are kept. A row is
dropped only if it lacks a required value or repeats a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import printable
from storage.results import UNKNOWN, Cell, Row
from storage.results.tables import Column, Table

# Smallest and largest allowed value for each unit. Differences are in the metric's own unit and are not bounded.
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("seconds", "bytes", "samples", "tokens", "parameters", "modules", "workloads"), (0, inf)),
    **dict.fromkeys(("candidates", "blocks", "calls", "launches", "rounds", "busy threads"), (0, inf)),
    **dict.fromkeys(("threads", "rank", "trials"), (1, inf)),
    "ratio": (5e-324, inf),
    "share": (0, 1),
    # A distance is measured in multiples of an output's range, so it can exceed 1.
    "ranges": (0, inf),
}
_NAMED = 3  # a message names at most this many rows and counts the others


def array_of(column: Column, values: Sequence[Cell]) -> pa.Array[pa.Scalar[pa.DataType]]:
    """Convert values to an Arrow array of the column's type; the caller must check for NULL.

    Raises
    ------
    ValueError
        The column does not accept a value; the message names the value and the reason.
    """
    try:
        array = pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not {column.type}: {error}") from error
    for value in values if column.choices else ():
        if value not in (None, *column.choices):
            raise ValueError(f"{value!r} is not one of {', '.join(column.choices)}")
    for value in values if pa.types.is_integer(column.type) else ():
        if isinstance(value, float) and not value.is_integer():  # Arrow would truncate the value
            raise ValueError(f"{value} is not a whole number")
    _check_numbers(column, array)
    return array


def why_not(column: Column, *values: Cell) -> str:
    """Return the reason that the column rejects one of the values, or ``""`` if the column accepts all values."""
    try:
        array_of(column, values)
    except ValueError as error:
        return printable(str(error))
    return ""


def known(table: Table, row: Row, columns: Iterable[Column] | None = None) -> Row:
    """Return the row with NULL in place of each invalid value in `columns`, and with the reasons in ``unknown``."""
    values, reasons = dict(row), _reasons(row)
    for column in table.columns if columns is None else columns:
        if column.name != UNKNOWN and (value := row.get(column.name)) is not None:
            values[column.name], why = _accepted(column, value)
            reasons |= {column.name: why} if why else {}
    if reasons and UNKNOWN in table.names:
        values[UNKNOWN] = reasons
    return values


def admit(table: Table, rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that the table accepts (see `known`), and messages about the rejected values and rows.

    A row that lacks a required value or repeats a key is dropped.
    """
    suspects = [column for column in table.columns if why_not(column, *(row.get(column.name) for row in rows))]
    complete: list[Row] = []
    dropped: list[str] = []
    for row in (known(table, row, suspects) for row in rows) if suspects else rows:
        missing = [column.name for column in table.columns if not column.nullable and row.get(column.name) is None]
        if missing:
            whys = "; ".join(f"{name}: {_reasons(row).get(name, 'it is NULL')}" for name in missing)
            dropped.append(f"{table.name}: the row {_label(row)} is dropped: {whys}")
        else:
            complete.append(row)
    # Compare the converted values, because values that differ in Python may be equal in Arrow.
    keys = [column for column in table.columns if column.name in table.key]
    arrays = {column.name: array_of(column, [row.get(column.name) for row in complete]) for column in keys}
    first: dict[tuple[object, ...], Row] = {}
    for row, key in zip(complete, pa.table(arrays).to_pylist(), strict=True):
        if first.setdefault(tuple(key.values()), row) is not row:
            dropped.append(f"{table.name}: the row {_label(row)} is dropped: an earlier row has the same key")
    return list(first.values()), [*_unknown(table, first.values()), *dropped]


def _accepted(column: Column, value: Cell) -> tuple[Cell, str]:
    """Return a value, or None and the reason why the column rejects the value."""
    if isinstance(value, str):
        # Escape lone surrogates, which occur in file names that are not UTF-8, to keep the rest of the text.
        value = value.encode("utf-8", "backslashreplace").decode("utf-8")
    why = why_not(column, value)
    return (None, why) if why else (value, "")


def _check_numbers(column: Column, array: pa.Array[pa.Scalar[pa.DataType]]) -> None:
    if isinstance(array, pa.MapArray):
        array = array.items
    elif isinstance(array, pa.ListArray):
        array = array.flatten()
    if not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        return
    if pa.types.is_floating(array.type) and len(bad := array.filter(pc.invert(pc.is_finite(array)))):
        raise ValueError(f"{bad[0].as_py()} is not a finite number")  # NaN would be the maximum in every query
    low, high = _BOUNDS.get(column.unit, (-inf, inf))
    for value in (pc.min(array).as_py(), pc.max(array).as_py()):
        if value is not None and not low <= value <= high:
            raise ValueError(f"{value:g} is out of range for {column.unit} ({low:g} to {high:g})")


def _reasons(row: Row) -> dict[str, str]:
    reasons: object = row.get(UNKNOWN)
    if not isinstance(reasons, Mapping | list | tuple):
        return {}
    return {str(name): printable(str(why)) for name, why in dict(reasons).items()}


def _unknown(table: Table, rows: Iterable[Row]) -> Iterator[str]:
    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for column, why in _reasons(row).items():
            alike.setdefault((column, why), []).append(_label(row))
    for (column, why), labels in alike.items():
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        yield f"{table.name} of {', '.join(labels[:_NAMED])}{more}: {column} not recorded: {why}"


def _label(row: Row) -> str:
    """Return a readable name for a row: its workload, candidate, module and metric, or its run id."""
    parts = {name: str(row[name]) for name in ("workload", "recipe", "runtime", "module", "metric") if row.get(name)}
    if "recipe" in parts and "runtime" in parts:
        parts["recipe"] += f"/{parts.pop('runtime')}"
    if row.get("setting") not in (None, "primary"):
        parts["setting"] = f"({row['setting']})"
    return " ".join(parts.values()) or str(row.get("run_id"))
