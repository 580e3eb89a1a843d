"""The task that records a run's rows, on a real server."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pytest

from flows import steps
from flows.execution.context import executing
from flows.reporter import Reporter
from flows.settings import load_settings
from storage.results.catalog import refresh
from storage.results.query import run_query
from tasks.results import RunInfo
from tests.storage.results.rows import measurement, run_row

DAY = dt.date(2026, 3, 1)
RUN = RunInfo(run_id="r1", night=DAY, profile="quick")


class _Heard(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def noted(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.server
def test_a_value_that_is_not_recorded_is_told_of_and_costs_nothing_else(tmp_path: Path, prefect_server: None) -> None:
    store, reporter = str(tmp_path / "store"), _Heard()
    rows = [measurement("r1", DAY, workload="odd", batch_difference=math.nan), measurement("r1", DAY)]
    with executing(load_settings(store=store), reporter):
        steps.record(RUN, {"measurements": rows, "layers": [], "runs": [run_row("r1", DAY)]}, store)
    assert reporter.said == [
        "measurements of odd dynamic/eager: batch_difference not recorded: nan is not a finite number"
    ]
    refresh(store)
    assert run_query(store, "select workload, speedup, unknown['batch_difference'] as why from latest").to_pylist() == [
        {"workload": "odd", "speedup": 2.0, "why": "nan is not a finite number"},
        {"workload": "word-lm", "speedup": 2.0, "why": None},
    ]
    assert run_query(store, "from runs").num_rows == 1
