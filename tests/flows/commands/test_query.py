from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from flows.commands.query import query
from flows.console import over_best_float
from flows.leaderboard import COLUMNS
from storage.humanize import ratio
from storage.results import Row, number
from storage.results.catalog import refresh
from storage.results.query import QueryError, open_catalog, rows_of
from tests.storage.results.filled import fill
from tests.storage.results.rows import CAPACITY, baseline, measurement, write_night


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_night(tmp_path, dt.date(2026, 3, 1))
    refresh(tmp_path)
    return tmp_path


def ask(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(query, [*arguments, "--store", str(store)], catch_exceptions=False)


SQL = "select recipe, night, speedup from trend order by recipe"


def test_a_table_is_aligned_and_counts_its_rows(store: Path) -> None:
    lines = ask(store, SQL).output.splitlines()
    assert lines == [
        "recipe   night       speedup",
        "-------  ----------  -------",
        "dynamic  2026-03-01        2",
        "float    2026-03-01        1",
        "(2 rows)",
    ]


@pytest.mark.slow
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


@pytest.mark.slow
def test_parquet_goes_to_a_file(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert ask(store, SQL, "--format", "parquet", "-o", str(out)).output == ""
    assert pq.read_table(out).column("recipe").to_pylist() == ["dynamic", "float"]


@pytest.mark.slow
def test_every_example_of_the_list_runs(store: Path) -> None:
    listing = ask(store, "--list").output
    examples = [line.strip() for line in listing.splitlines() if line.startswith("    ")]
    assert len(examples) == 22
    for view in ("latest", "leaderboard", "trend", "pareto", "regressions", "failures", "samples"):
        assert f"{view} (view)" in listing
    for example in examples:
        assert ask(store, example).exit_code == 0


def rows_of_outcomes(store: Path, workload: str, candidate: str) -> list[Row]:
    sql = "from outcomes where setting = 'primary' and workload = $workload and candidate = $candidate"
    with open_catalog(store) as connection:
        return rows_of(connection, sql, workload=workload, candidate=candidate)


def at_terminal(store: Path, sql: str, columns: int, *options: str) -> list[str]:
    """Run ``nightquant query`` at a terminal of this width; return its lines without colours."""
    program = [sys.executable, "-m", "flows", "query", "--store", str(store), sql, *options]
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (40, columns))
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "dumb"}
        with subprocess.Popen(program, stdout=theirs, env=environment) as process:
            os.close(theirs)
            printed = b""
            with contextlib.suppress(OSError):  # on Linux the end of a terminal's output is an error
                while chunk := os.read(ours, 65536):
                    printed += chunk
        assert process.returncode == 0
    finally:
        os.close(ours)
    return printed.decode().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_leaderboard_is_one_table_on_any_terminal_of_80_columns(tmp_path: Path, width: int) -> None:
    fill(tmp_path)
    printed = at_terminal(tmp_path, "FROM leaderboard", width)
    assert max(map(len, printed)) <= width
    assert printed[0].split()[:6] == ["workload", "candidate", "decision", "over", "float", "smaller"]
    assert sum(line.startswith(("lstm-demo ", "resnet18 ", "word-lm ")) for line in printed) == 13
    (omitted,) = [" ".join(printed[index:]) for index, line in enumerate(printed) if line.startswith("Not shown: ")]
    assert ("why" in printed[0]) == (width == 200) != ("why" in omitted)


@pytest.mark.slow
def test_the_leaderboard_shows_the_numbers_of_the_nights_own_table(tmp_path: Path) -> None:
    fill(tmp_path)
    (row,) = rows_of_outcomes(tmp_path, "word-lm", "dynamic-int8/torchscript")
    printed = at_terminal(tmp_path, "FROM leaderboard where workload = 'word-lm'", 100)
    (line,) = [line for line in printed if " dynamic-int8/torchscript " in line]
    assert f" {over_best_float(row)} " in line
    assert f" {ratio(number(row, 'size_ratio'))} " in line


@pytest.mark.slow
def test_the_leaderboard_shows_capacities_only_if_they_were_measured(tmp_path: Path) -> None:
    night = dt.date(2026, 3, 1)
    write_night(tmp_path / "without", night)
    write_night(tmp_path / "with", night, [baseline("run", night), measurement("run", night, **CAPACITY)], "run")
    shown = []
    for store in (tmp_path / "without", tmp_path / "with"):
        refresh(store)
        shown.append(at_terminal(store, "FROM leaderboard", 200))
    assert {"requests/s", "p99", "cost"}.isdisjoint(shown[0][0].split())
    assert "capacity" not in shown[0][-1]
    (line,) = [line for line in shown[1] if " dynamic/eager " in line]
    assert "capacity" not in shown[1][-1]
    for heading, value in (("requests/s", "1,234"), ("serves", "1.25×"), ("p99", "19.5 ms"), ("cost", "0.0225")):
        assert heading in shown[1][0].split()
        assert f" {value} " in line


@pytest.mark.slow
def test_a_format_that_is_asked_for_cuts_nothing_at_a_terminal(tmp_path: Path) -> None:
    fill(tmp_path)
    printed = at_terminal(tmp_path, "FROM leaderboard", 80, "--format", "table")
    assert printed == ask(tmp_path, "FROM leaderboard").output.splitlines()


def test_the_terminals_leaderboard_names_the_columns_of_the_view(store: Path) -> None:
    names = json.loads(ask(store, "FROM leaderboard limit 1", "--format", "json").output)[0]
    assert names.keys() == COLUMNS


def test_nothing_is_cut_where_there_is_no_terminal(store: Path, tmp_path: Path) -> None:
    sql = "select repeat('x', 400) as long, *, repeat('y', 400) as last from leaderboard"
    piped = ask(store, sql).output
    assert "…" not in piped
    assert len(piped.splitlines()) == 5
    ask(store, sql, "-o", str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == piped


@pytest.mark.slow
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
