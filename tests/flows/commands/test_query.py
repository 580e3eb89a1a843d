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

import pytest
from click.testing import CliRunner, Result

from flows.commands.query import acknowledge, query
from storage.errors import ConfigurationError
from storage.results.catalog import refresh
from storage.results.query import QueryError, run_query
from storage.results.regressions import compare_night
from tests.storage.results.filled import fill
from tests.storage.results.rows import baseline, measurement, write_night


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_night(tmp_path, dt.date(2026, 3, 1))
    refresh(tmp_path)
    return tmp_path


def ask(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(query, [*arguments, "--store", str(store)], catch_exceptions=False)


SQL = "select recipe, night, speedup from trend order by recipe"


@pytest.mark.slow
def test_csv_and_json(store: Path) -> None:
    csv = "recipe,night,speedup\ndynamic,2026-03-01,2.0\nfloat,2026-03-01,1.0\n"
    assert ask(store, SQL, "--format", "csv").output == csv
    second = {"recipe": "float", "night": "2026-03-01", "speedup": 1.0}
    assert json.loads(ask(store, SQL, "--format", "json").output)[1] == second


@pytest.mark.slow
def test_every_example_of_the_list_runs(store: Path) -> None:
    listing = ask(store, "--list").output
    examples = [line.strip() for line in listing.splitlines() if line.startswith("    ")]
    assert len(examples) == 19
    for view in ("latest", "leaderboard", "trend", "pareto", "regressions", "failures", "samples"):
        assert f"{view} (view)" in listing
    for example in examples:
        assert ask(store, example).exit_code == 0


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
def test_the_leaderboard_is_a_table_for_each_workload_on_a_terminal(tmp_path: Path) -> None:
    fill(tmp_path)
    printed = at_terminal(tmp_path, "FROM leaderboard", 80)
    assert max(map(len, printed)) <= 80
    assert {"lstm-demo", "resnet18", "word-lm"} <= set(printed)
    assert sum(line.startswith("  candidate") for line in printed) == 3


def test_nothing_is_cut_where_there_is_no_terminal(store: Path, tmp_path: Path) -> None:
    sql = "select repeat('x', 400) as long, *, repeat('y', 400) as last from leaderboard"
    piped = ask(store, sql).output
    assert "…" not in piped
    assert piped.count("x" * 400) == piped.count("y" * 400) == 2
    ask(store, sql, "-o", str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == piped


@pytest.mark.slow
def test_an_sql_error_is_duckdbs_own_message(store: Path) -> None:
    with pytest.raises(QueryError, match="Table with name nosuch does not exist") as caught:
        ask(store, "from nosuch")
    assert caught.value.exit_code == 2


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_early_is_not_an_error(store: Path) -> None:
    program = [sys.executable, "-m", "flows", "query", "--store", str(store), "--format", "csv", "from range(500000)"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


FIRST = dt.date(2026, 3, 1)


@pytest.fixture
def regressed(tmp_path: Path) -> Path:
    for index, size in enumerate((400, 500)):
        night, run = FIRST + dt.timedelta(days=index), f"run-{index}"
        rows = [baseline(run, night)]
        rows += [measurement(run, night, recipe=recipe, size_bytes=size) for recipe in ("dynamic", "static")]
        write_night(tmp_path, night, rows, run)
    refresh(tmp_path)
    return tmp_path


def acknowledged(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(acknowledge, [*arguments, "--store", str(store)], catch_exceptions=False)


@pytest.mark.slow
def test_matching_regressions_are_accepted_with_author_and_reason_and_the_others_stay(regressed: Path) -> None:
    done = acknowledged(
        regressed, "--workload", "word-lm", "--recipe", "static", "--reason", "a larger table", "--by", "me"
    )
    assert done.exit_code == 0
    assert done.output.startswith("Acknowledged: word-lm static/eager larger: size_bytes 500, was 400, +25.0%")
    assert done.output.count("\n") == 1
    assert [found.recipe for found in compare_night(regressed).findings] == ["dynamic"]
    rest = acknowledged(regressed, "--workload", "word-lm", "--reason", "the same").stdout
    assert rest.startswith("Acknowledged: word-lm dynamic/eager larger: size_bytes 500")
    kept = "select night, runtime, metric, reason, acknowledged_by from acknowledgements where recipe = 'static'"
    (row,) = run_query(regressed, kept).to_pylist()
    assert list(row.values()) == [FIRST + dt.timedelta(days=1), "eager", "size_bytes", "a larger table", "me"]


@pytest.mark.slow
def test_a_request_without_matching_regressions_is_refused_with_the_findings(regressed: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to acknowledge") as refused:
        acknowledged(regressed, "-w", "word-lm", "--metric", "speedup", "--reason", "why not")
    assert "word-lm static/eager larger" in str(refused.value)
    assert len(compare_night(regressed).findings) == 2
