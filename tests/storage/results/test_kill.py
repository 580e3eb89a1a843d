"""A writer and a compactor are killed at random moments, over and over: nothing is lost, torn or counted twice.

``NIGHTQUANT_KILLS`` sets how many of each are killed (default 20; the release check uses 100).
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from storage.check import check
from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.query import run_query

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("NIGHTQUANT_KILLS", "20"))
REPOSITORY = Path(__file__).parents[3]

# Each prints a line when it is ready and then works until it is killed; the writer names each run once it is written.
WRITER = """
import datetime as dt, itertools, sys
from storage.results.catalog import refresh
from tests.storage.results.rows import baseline, measurement, at
from storage.results.writer import ResultsStore
store, seed = ResultsStore(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
for number in itertools.count():
    run, night = f"run-{seed}-{number}", dt.date(2026, 1 + number % 3, 1 + number % 28)
    store.append("measurements", [baseline(run, night), measurement(run, night)], run, at(night))
    print(run, flush=True)
    if number % 3 == 2:
        refresh(store.root)
"""
COMPACTOR = """
import datetime as dt, sys
from storage.results.compact import compact
print("ready", flush=True)
while True:
    compact(sys.argv[1], grace=dt.timedelta(0))
"""


def start(program: str, store: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(store), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=dict(os.environ))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> list[str]:
    """Kill it; return the runs whose whole lines it printed."""
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()
    complete, _, _ = out.rpartition("\n")
    # Without a file for its program, DuckDB takes a process for interactive and shows the progress of slow statements.
    return [line for line in complete.splitlines() if line.startswith("run-")]


def counts(store: Path) -> dict[str, int]:
    """Rows per run as the catalog says; a query that fails fails the test."""
    rows = run_query(store, "select run_id, count(*) as rows from measurements group by run_id").to_pylist()
    return {row["run_id"]: row["rows"] for row in rows}


def glob_counts(store: Path) -> dict[str, int]:
    pattern = f"{store}/results/measurements/**/*.parquet"
    sql = f"select run_id, count(*) from read_parquet('{pattern}', union_by_name = true) group by run_id"
    with duckdb.connect() as connection:
        return dict(connection.execute(sql).fetchall())


@pytest.mark.long
def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    generator = random.Random(0)
    finished: set[str] = set()
    seen: dict[str, int] = {}
    for kill_number in range(KILLS):
        writer = start(WRITER, tmp_path, kill_number)
        compactor = start(COMPACTOR, tmp_path, kill_number)
        try:
            compactor.wait(generator.uniform(0.05, 1.5))
        except subprocess.TimeoutExpired:
            kill(compactor)
        else:
            pytest.fail("the compactor ended by itself")
        finished |= set(kill(writer))
        if (tmp_path / "results.duckdb").exists():
            before, seen = seen, counts(tmp_path)
            assert set(seen.values()) <= {2}, "a half or doubled run"
            assert before.keys() <= seen.keys(), "a run that was seen has gone"
    refresh(tmp_path)
    assert finished <= counts(tmp_path).keys()
    for _ in range(2):
        compact(tmp_path, now=dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
    assert set(counts(tmp_path).values()) == {2}
    assert counts(tmp_path) == glob_counts(tmp_path)
    assert len(finished) >= KILLS // 2
    assert check(tmp_path).problems == ()
