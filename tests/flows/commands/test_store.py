from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flows.commands.setup import store as command
from storage.errors import StoreError
from storage.results.catalog import refresh
from tests.storage.results.rows import write_night


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_night(tmp_path, dt.date(2026, 3, 1))
    refresh(tmp_path)
    return tmp_path


def run(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--store", str(store)], catch_exceptions=False)


@pytest.mark.slow
def test_check_is_zero_when_all_is_good_and_one_with_what_to_do_when_not(store: Path) -> None:
    good = run(store, "check")
    assert (good.exit_code, good.output) == (0, f"2 results files and 0 artifacts in {store}: no problems.\n")
    (store / "results/runs/notes.txt").touch()
    bad = run(store, "check")
    assert bad.exit_code == 1
    assert "notes.txt does not belong here.\n    Move the file out of the store." in bad.output
    assert bad.output.endswith("1 problem.\n")


def test_check_refuses_a_location_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no store at") as refusal:
        run(tmp_path / "missing", "check")
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "missing").exists()


@pytest.mark.slow
def test_compact_says_what_it_did_and_mends_the_catalog(store: Path) -> None:
    (store / "results.duckdb").unlink()
    assert "compacted measurements 2026-03" in run(store, "compact").output
    assert (store / "results.duckdb").exists()


@pytest.mark.slow
def test_gc_dry_run_says_what_it_would_do(store: Path) -> None:
    assert "0 artifacts and 0 left-over files would be removed" in run(store, "gc", "--dry-run").output
    assert run(store, "gc", "--keep-nights", "0").exit_code == 2
