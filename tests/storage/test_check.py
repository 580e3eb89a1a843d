from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from storage.artifacts import ArtifactStore, artifact_digest
from storage.check import check
from storage.results.catalog import refresh
from tests.storage.results.rows import baseline, measurement, write_night

NIGHT = dt.date(2026, 3, 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    digest = artifact_digest("quantized", {"seed": 1})
    with ArtifactStore(tmp_path).create("quantized", digest, {"seed": 1}) as folder:
        (folder / "weights").write_bytes(b"weights")
    run = "run-1"
    rows = [baseline(run, NIGHT), measurement(run, NIGHT, artifact_digest=digest)]
    write_night(tmp_path, NIGHT, rows, run)
    refresh(tmp_path)
    return tmp_path


def results(store: Path) -> Path:
    return store / "results/measurements/month=2026-03/run-1.parquet"


def artifact(store: Path) -> Path:
    return next((store / "artifacts/quantized").glob("*/*"))


def said(store: Path) -> str:
    return "\n".join(f"{problem.where} {problem.what} {problem.remedy}" for problem in check(store).problems)


def test_a_good_store_has_no_problems(store: Path) -> None:
    checked = check(store)
    assert checked.problems == ()
    assert (checked.results_files, checked.artifacts) == (2, 1)


def test_an_empty_store_has_none_either(tmp_path: Path) -> None:
    assert check(tmp_path).problems == ()


def test_a_truncated_results_file_is_named(store: Path) -> None:
    results(store).write_bytes(results(store).read_bytes()[:-100])
    assert "run-1.parquet cannot be read" in said(store)


def test_a_retyped_or_unknown_column_is_named(store: Path) -> None:
    table = pq.ParquetFile(results(store)).read()
    retyped = table.set_column(
        table.schema.get_field_index("size_bytes"), "size_bytes", table["size_bytes"].cast("double")
    )
    pq.write_table(retyped.append_column("novel", table["latency_s"]), results(store))
    assert "has size_bytes as double, not int64" in said(store)
    assert "unknown column novel" in said(store)


def test_a_run_in_two_months_is_named(store: Path) -> None:
    other = store / "results/measurements/month=2026-04"
    other.mkdir()
    shutil.copy(results(store), other)
    assert "holds run run-1 2 times" in said(store)


def test_a_foreign_file_among_the_results_is_named(store: Path) -> None:
    (results(store).parent / "notes.txt").write_text("x")
    assert "notes.txt does not belong here" in said(store)


def test_a_changed_missing_or_added_file_of_an_artifact_is_named(store: Path) -> None:
    (artifact(store) / "weights").write_bytes(b"other")
    (artifact(store) / "more").touch()
    assert "weights is not what was written: its digest differs" in said(store)
    assert "more is in no manifest" in said(store)
    (artifact(store) / "weights").unlink()
    assert "weights is missing" in said(store)


def test_an_artifact_under_a_wrong_name_or_without_manifest_is_named(store: Path) -> None:
    moved = artifact(store).rename(artifact(store).with_name("0" * 64))
    assert "is not named by what it was made from" in said(store)
    (moved / "artifact.json").unlink()
    assert "has no readable artifact.json" in said(store)


def test_a_row_whose_artifact_is_gone_is_named(store: Path) -> None:
    shutil.rmtree(artifact(store))
    assert "is missing, but word-lm's newest night refers to it Run the night again." in said(store)


def test_a_missing_stale_or_broken_catalog_is_named(store: Path) -> None:
    write_night(store, dt.date(2026, 3, 2), [measurement("r2", dt.date(2026, 3, 2), artifact_digest=None)], "r2")
    assert "names 2 files, the store holds 4" in said(store)
    (store / "results.duckdb").write_bytes(b"no database")
    assert "results.duckdb cannot be read" in said(store)
    (store / "results.duckdb").unlink()
    assert "results.duckdb is missing Run: nightquant store compact" in said(store)


def test_what_a_killed_writer_left_is_named_once_it_is_old(store: Path) -> None:
    left = results(store).with_name(".run-2-abc.tmp")
    left.touch()
    assert said(store) == ""
    os.utime(left, (0, 0))
    assert ".run-2-abc.tmp is left over" in said(store)
