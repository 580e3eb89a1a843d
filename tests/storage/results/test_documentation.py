from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.results.documentation import MARKER, PAGE, documented
from storage.results.tables import TABLES

HERE = Path(__file__).parent
RELEASED = json.loads((HERE / "released_columns.json").read_text(encoding="utf-8"))


def test_the_page_is_what_the_tables_say() -> None:
    written = (HERE.parents[2] / PAGE).read_text(encoding="utf-8")
    assert MARKER in written
    assert written == documented(written), "Write it again with: python -m storage.results.documentation"


@pytest.mark.parametrize("table", list(RELEASED))
def test_no_released_column_is_removed_or_retyped(table: str) -> None:
    assert table in TABLES
    now = {column.name: str(column.type) for column in TABLES[table].columns}
    changed = {name: (kind, now.get(name)) for name, kind in RELEASED[table].items() if now.get(name) != kind}
    assert not changed, "What people have saved reads these; add a column instead."


@pytest.mark.parametrize("table", list(TABLES))
def test_every_added_column_is_nullable_and_released_here(table: str) -> None:
    columns = {column.name: column for column in TABLES[table].columns}
    added = set(columns) - set(RELEASED.get(table, {}))
    assert all(columns[name].nullable for name in added), "Older files have no value for it."


@pytest.mark.parametrize("table", list(TABLES))
def test_keys_and_orders_name_columns_that_are_never_null(table: str) -> None:
    required = {column.name for column in TABLES[table].columns if not column.nullable}
    assert set(TABLES[table].key) <= required
    assert set(TABLES[table].order) <= required
