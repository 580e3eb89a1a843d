from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.results.catalog import refresh
from storage.results.query import QueryError, open_catalog, run_query
from tests.storage.results.rows import write_night


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    write_night(folder, dt.date(2026, 3, 1))
    refresh(folder)
    return folder


def contents(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_last_statement_returns_the_rows(store: Path) -> None:
    assert run_query(store, "select 1; select 2 as two").to_pydict() == {"two": [2]}


def test_ways_of_reading_are_open(store: Path) -> None:
    for sql in (
        "describe latest",
        "show tables",
        "explain analyze select 1",
        "summarize trend",
        "values (1)",
        "from runs",
        "pivot measurements on recipe using count(*) group by night; -- by night",
        "with few as (from measurements limit 1) from (pivot few on recipe)",
    ):
        assert run_query(store, sql).num_rows >= 1


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to '{store}/results/x.csv'",
        "explain analyze copy (select 1) to '{store}/results/x.csv'",
        "with q as (copy (select 1) to '{store}/results/x.csv') from q",
        "with q as (copy (select 1) to '{store}/results.duckdb' (use_tmp_file false)) select 1",
        "from json_execute_serialized_sql(json_serialize_sql("
        "'with q as (co'||'py (select 1) to ''{store}/results/x.csv'') from q'))",
        "prepare p as copy (select 1) to '{store}/results/x.csv'; execute p",
        "attach '{store}/x.duckdb'",
        "export database '{store}/results/x'",
        "create table x as select 1",
        "create or replace view latest as select 1",
        "insert into runs select * from runs",
        "delete from measurements",
        "set enable_external_access = true",
        "reset lock_configuration",
        "pragma enable_profiling = 'json'",
        "install httpfs",
        "load '{store}/x.duckdb_extension'",
        "select * from read_csv('/etc/passwd')",
        "from read_parquet('{store}/results/**/*.parquet')",
        "",
        ";",
    ],
)
def test_a_statement_that_does_not_read_the_catalog_is_refused_and_changes_nothing(store: Path, sql: str) -> None:
    before = contents(store)
    with pytest.raises(QueryError):
        run_query(store, sql.format(store=store))
    assert contents(store) == before


def test_a_query_that_overwrites_its_catalog_leaves_the_stores_as_it_is(store: Path) -> None:
    before = contents(store)
    attached = "select path from duckdb_databases() where database_name = 'results'"
    with open_catalog(store) as connection:
        ((path,),) = connection.execute(attached).fetchall()
        connection.execute(f"copy (select 1) to '{path}' (use_tmp_file false)")
    assert contents(store) == before


@pytest.mark.parametrize("damage", ["foreign", "cut off", "changed"])
def test_the_error_of_a_damaged_catalog_contains_a_hint(damage: str, tmp_path: Path) -> None:
    write_night(tmp_path, dt.date(2026, 3, 1))
    path = Path(refresh(tmp_path))
    content = bytearray(path.read_bytes())
    if damage == "foreign":
        content = bytearray(b"no database")
    elif damage == "cut off":
        del content[len(content) // 2 :]
    else:
        for place in range(12288, len(content), 5000):
            content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot be read.*nightquant store compact") as caught:
        run_query(tmp_path, "from leaderboard")
    assert not isinstance(caught.value, QueryError)
    refresh(tmp_path)
    assert run_query(tmp_path, "from leaderboard").num_rows == 2


def test_the_error_of_a_store_without_results_contains_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nightquant nightly"):
        run_query(tmp_path, "select 1")


def test_results_without_a_catalog_are_read_and_none_is_left_behind(tmp_path: Path) -> None:
    write_night(tmp_path, dt.date(2026, 3, 1))
    before = contents(tmp_path)
    assert run_query(tmp_path, "from leaderboard").num_rows == 2
    assert contents(tmp_path) == before


def test_stores_are_read_side_by_side_in_one_process(store: Path, tmp_path: Path) -> None:
    write_night(tmp_path, dt.date(2026, 4, 1))
    refresh(tmp_path)
    for _ in range(2):
        assert run_query(store, "select max(night) n from latest").to_pydict() == {"n": [dt.date(2026, 3, 1)]}
        assert run_query(tmp_path, "select max(night) n from latest").to_pydict() == {"n": [dt.date(2026, 4, 1)]}
