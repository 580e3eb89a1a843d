"""Single-bit flips of a results file are found."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage.check import check
from storage.errors import StoreError
from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.layout import read_rows
from storage.results.tables import MEASUREMENTS, PROMOTIONS
from storage.results.writer import serialized, validated
from storage.root import StoreRoot
from tests.storage.results.rows import baseline, measurement, promotion, rewrite, write_night

NIGHT = dt.date(2026, 3, 1)
ROWS, _ = validated(MEASUREMENTS, [baseline("r1", NIGHT), measurement("r1", NIGHT)], "r1")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.slow
def test_the_checksum_of_a_written_file_is_right_and_the_rows_are_as_they_were(tmp_path: Path) -> None:
    content = serialized(ROWS)
    (tmp_path / "r1.parquet").write_bytes(content)
    assert read_rows(StoreRoot.of(tmp_path), MEASUREMENTS, "r1.parquet").equals(ROWS)
    assert serialized(ROWS) == content


@pytest.mark.slow
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    rows, _ = validated(PROMOTIONS, [promotion("r1", NIGHT)], "r1")
    content = serialized(rows)
    for bit in range(0, 8 * len(content), 101):
        (tmp_path / "r1.parquet").write_bytes(flipped(content, bit))
        with pytest.raises(StoreError, match=r"r1\.parquet cannot be read"):
            read_rows(StoreRoot.of(tmp_path), PROMOTIONS, "r1.parquet")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_night(tmp_path, NIGHT, [baseline("r1", NIGHT), measurement("r1", NIGHT)], "r1")
    return tmp_path


def results(store: Path) -> Path:
    return store / "results/measurements/month=2026-03/r1.parquet"


def test_store_check_names_a_file_with_a_flipped_bit_wherever_it_is(store: Path) -> None:
    refresh(store)
    content = results(store).read_bytes()
    for bit in range(0, 8 * len(content), len(content) // 4):
        results(store).write_bytes(flipped(content, bit))
        (problem,) = check(store).problems
        assert problem.where.endswith("r1.parquet")
        assert problem.what.startswith("cannot be read: ")


def test_a_flipped_value_never_reaches_the_catalog_nor_a_compacted_month(store: Path) -> None:
    content = results(store).read_bytes()
    results(store).write_bytes(flipped(content, len(content)))  # in the first columns
    with pytest.raises(StoreError, match="cannot be read: "):
        refresh(store)
    with pytest.raises(StoreError, match="cannot be read: "):
        compact(store, now=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    assert list((store / "results/measurements").rglob("*.parquet")) == [results(store)]


@pytest.mark.parametrize("runs", [b"[not JSON", b"5", b"\xff"])
def test_a_compacted_month_whose_list_of_runs_is_damaged_is_named(runs: bytes, store: Path) -> None:
    compact(store, now=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    (whole,) = (store / "results/measurements").rglob("compacted-*")
    rows = pq.ParquetFile(whole).read()
    rewrite(whole, rows.replace_schema_metadata({b"nightquant.runs": runs}))
    with pytest.raises(StoreError, match=r"0001\.parquet cannot be read"):
        refresh(store)


def test_a_file_without_a_checksum_is_refused(store: Path) -> None:
    rows = pq.ParquetFile(results(store)).read()
    pq.write_table(rows.replace_schema_metadata(MEASUREMENTS.schema.metadata), results(store))
    with pytest.raises(StoreError, match="its SHA-256 differs"):
        read_rows(StoreRoot.of(store), MEASUREMENTS, "results/measurements/month=2026-03/r1.parquet")
