from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from flows.commands.query import query
from storage.results.catalog import refresh
from storage.results.query import QueryError
from tests.storage.results.rows import write_night


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_night(tmp_path, dt.date(2026, 3, 1))
    refresh(tmp_path)
    return tmp_path


def ask(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(query, [*arguments, "--store", str(store)], catch_exceptions=False)


SQL = "select recipe, night, speedup from leaderboard order by recipe"


def test_a_table_is_aligned_and_counts_its_rows(store: Path) -> None:
    lines = ask(store, SQL).output.splitlines()
    assert lines == [
        "recipe   night       speedup",
        "-------  ----------  -------",
        "dynamic  2026-03-01        2",
        "float    2026-03-01        1",
        "(2 rows)",
    ]


def test_csv_json_and_markdown(store: Path) -> None:
    assert (
        ask(store, SQL, "--format", "csv").output
        == "recipe,night,speedup\ndynamic,2026-03-01,2.0\nfloat,2026-03-01,1.0\n"
    )
    assert json.loads(ask(store, SQL, "--format", "json").output)[1] == {
        "recipe": "float",
        "night": "2026-03-01",
        "speedup": 1.0,
    }
    assert ask(store, SQL, "--format", "markdown").output.splitlines()[:2] == [
        "| recipe | night | speedup |",
        "| --- | --- | ---: |",
    ]


def test_parquet_goes_to_a_file(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert ask(store, SQL, "--format", "parquet", "-o", str(out)).output == ""
    assert pq.read_table(out).column("recipe").to_pylist() == ["dynamic", "float"]


def test_every_example_of_the_list_runs(store: Path) -> None:
    listing = ask(store, "--list").output
    examples = [line.strip() for line in listing.splitlines() if line.startswith("    ")]
    assert len(examples) == 14
    for view in ("latest", "leaderboard", "trend", "pareto", "regressions", "failures", "samples"):
        assert f"{view} (view)" in listing
    for example in examples:
        assert ask(store, example).exit_code == 0


def test_an_sql_error_is_duckdbs_own_message(store: Path) -> None:
    with pytest.raises(QueryError, match="Table with name nosuch does not exist") as caught:
        ask(store, "from nosuch")
    assert caught.value.exit_code == 2


def test_no_sql_is_a_usage_error(store: Path) -> None:
    result = ask(store)
    assert result.exit_code == 2
    assert "--list" in result.output


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(store: Path) -> None:
    program = [sys.executable, "-m", "flows", "query", "--store", str(store), "--format", "csv", "from range(500000)"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")
