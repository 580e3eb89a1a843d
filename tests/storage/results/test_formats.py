from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest

from storage.results.formats import FORMATS, formatted


def as_json(sql: str) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    with duckdb.connect() as connection:
        rows: list[dict[str, Any]] = json.loads(
            formatted(connection.sql(sql).to_arrow_table(), "json"), parse_constant=refuse
        )
    return rows


@pytest.mark.slow
def test_nan_and_infinities_are_null_at_any_depth() -> None:
    sql = """
        select 'nan'::double a, 'inf'::double b, ['-inf'::double, 1] c,
            {'x': ['nan'::float]} d, map{'k': 'inf'::float} e
    """
    assert as_json(sql) == [{"a": None, "b": None, "c": [None, 1.0], "d": {"x": [None]}, "e": {"k": None}}]


@pytest.mark.slow
def test_decimals_stay_exact() -> None:
    assert as_json("select 12345678901234567890.12::decimal(38, 2) a, sum(1) b") == [
        {"a": "12345678901234567890.12", "b": "1"}
    ]


@pytest.mark.slow
def test_maps_are_objects_whatever_their_keys() -> None:
    assert as_json("select map{date '2026-03-01': 1} a, map{} b, [map{1: 2}] c") == [
        {"a": {"2026-03-01": 1}, "b": {}, "c": [{"1": 2}]}
    ]


@pytest.mark.parametrize("format_", sorted(FORMATS.keys() - {"parquet"}))
@pytest.mark.slow
def test_every_type_that_duckdb_has_can_be_written_as_text(format_: str) -> None:
    with duckdb.connect() as connection:
        columns = [row[0] for row in connection.execute("describe from test_all_types()").fetchall()]
        for column in columns:
            table = connection.sql(f'select "{column}" from test_all_types()').to_arrow_table()
            assert formatted(table, format_)
