"""Every single-bit flip of a results file is found."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage.check import check
from storage.errors import StoreError
from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.layout import problem_of
from storage.results.tables import MEASUREMENTS, PROMOTIONS
from storage.results.writer import serialized, validated
from tests.storage.results.rows import baseline, measurement, promotion, rewrite, write_night

NIGHT = dt.date(2026, 3, 1)
ROWS = validated(MEASUREMENTS, [baseline("r1", NIGHT), measurement("r1", NIGHT)], "r1")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.slow
def test_the_checksum_of_a_written_file_is_right_and_the_rows_are_as_they_were(tmp_path: Path) -> None:
    content = serialized(MEASUREMENTS, ROWS)
    assert problem_of(content) == ""
    (tmp_path / "r1.parquet").write_bytes(content)
    assert pq.ParquetFile(tmp_path / "r1.parquet", page_checksum_verification=True).read().equals(ROWS)
    assert serialized(MEASUREMENTS, ROWS) == content


@pytest.mark.slow
def test_every_single_bit_flip_of_a_file_is_found() -> None:
    content = serialized(PROMOTIONS, validated(PROMOTIONS, [promotion("r1", NIGHT)], "r1"))
    missed = [bit for bit in range(8 * len(content)) if not problem_of(flipped(content, bit))]
    assert missed == []


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
        assert problem.what == "cannot be read: its SHA-256 differs from the digest in its footer"


def flip_a_value(store: Path) -> None:
    """A bit of the first columns: beyond them come the schema and the checksum itself, which say something else."""
    content = results(store).read_bytes()
    results(store).write_bytes(flipped(content, len(content)))


def test_a_flipped_bit_never_reaches_the_catalog_nor_a_compacted_month(store: Path) -> None:
    flip_a_value(store)
    with pytest.raises(StoreError, match=r"r1\.parquet cannot be read: its SHA-256 differs"):
        refresh(store)
    with pytest.raises(StoreError, match=r"r1\.parquet cannot be read: its SHA-256 differs"):
        compact(store, now=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    assert not list(store.rglob("*.pq"))


@pytest.mark.parametrize("runs", [b"[not JSON", b"5", b"\xff"])
def test_a_compacted_month_whose_list_of_runs_is_damaged_is_named(runs: bytes, store: Path) -> None:
    compact(store, now=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    whole = next((store / "results/measurements/compacted").iterdir())
    rows = pq.ParquetFile(whole).read()
    rewrite(whole, rows.replace_schema_metadata({b"nightquant.runs": runs}))
    with pytest.raises(StoreError, match=r"0001\.pq cannot be read"):
        refresh(store)


def test_a_compacted_month_has_its_own_checksum(store: Path) -> None:
    compact(store, now=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    whole = next((store / "results/measurements/compacted").iterdir())
    assert problem_of(whole.read_bytes()) == ""
    assert problem_of(flipped(whole.read_bytes(), 999))


def test_a_file_without_a_checksum_is_refused(store: Path) -> None:
    rows = pq.ParquetFile(results(store)).read()
    pq.write_table(rows.replace_schema_metadata(MEASUREMENTS.schema.metadata), results(store))
    with pytest.raises(StoreError, match="its footer does not have a SHA-256"):
        refresh(store)
