from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flows.commands.query import acknowledge as command
from storage.errors import ConfigurationError
from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.regressions import compare_night
from tests.storage.results.rows import baseline, measurement, write_night

FIRST = dt.date(2026, 3, 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for index, size in enumerate((400, 500)):
        night, run = FIRST + dt.timedelta(days=index), f"run-{index}"
        rows = [baseline(run, night)]
        rows += [measurement(run, night, recipe=recipe, size_bytes=size) for recipe in ("dynamic", "static")]
        write_night(tmp_path, night, rows, run)
    refresh(tmp_path)
    return tmp_path


def run(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--store", str(store)], catch_exceptions=False)


@pytest.mark.slow
def test_what_fits_is_accepted_with_who_and_why_and_the_rest_stays(store: Path) -> None:
    done = run(store, "--workload", "word-lm", "--recipe", "static", "--reason", "a larger table", "--by", "me")
    assert done.exit_code == 0
    assert done.output.startswith("Acknowledged: word-lm static/eager larger: size_bytes 500, was 400, +25.0%")
    assert done.output.count("\n") == 1
    assert [found.recipe for found in compare_night(store).findings] == ["dynamic"]
    rest = run(store, "--workload", "word-lm", "--reason", "the same").stdout
    assert rest.startswith("Acknowledged: word-lm dynamic/eager larger: size_bytes 500")
    kept = "select night, runtime, metric, reason, acknowledged_by from acknowledgements where recipe = 'static'"
    (row,) = run_query(store, kept).to_pylist()
    assert list(row.values()) == [FIRST + dt.timedelta(days=1), "eager", "size_bytes", "a larger table", "me"]


@pytest.mark.slow
def test_nothing_that_fits_is_refused_with_what_was_found(store: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to acknowledge") as refused:
        run(store, "-w", "word-lm", "--metric", "speedup", "--reason", "why not")
    assert "word-lm static/eager larger" in str(refused.value)
    assert len(compare_night(store).findings) == 2
