from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from storage.results.catalog import refresh
from storage.results.query import run_query
from storage.results.writer import ResultsStore
from tests.storage.results.rows import at, measurement, trial, write_night

NIGHT = dt.date(2026, 3, 1)


def found(store: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The view over the given trials, each run of which is written on its own."""
    for run in dict.fromkeys(row["run_id"] for row in rows):
        own = [row for row in rows if row["run_id"] == run]
        ResultsStore(store).append("trials", own, run, at(own[0]["night"]))
    refresh(store)
    searches: list[dict[str, Any]] = run_query(store, "from searches").to_pylist()
    return searches


def test_a_search_is_counted_and_named_by_its_best_chosen_trial(tmp_path: Path) -> None:
    (search,) = found(
        tmp_path,
        trial("r1", NIGHT, 1, outcome="failed", speedup=9.0),
        trial("r1", NIGHT, 2, outcome="chosen", speedup=2.0, cost_s=0.0),
        trial("r1", NIGHT, 3, outcome="chosen", speedup=3.0, quality_drop=0.2),
        trial("r1", NIGHT, 4, outcome="passing", speedup=1.5),
        trial("r1", NIGHT, 5, outcome="dropped", speedup=None, cost_s=None),
    )
    counts = {name: search[name] for name in ("trials", "passing", "spent_s")}
    assert counts == {"trials": 5, "passing": 3, "spent_s": 37.5}
    assert (search["recipe"], search["runtime"], search["speedup"], search["quality_drop"]) == (
        "static-3", "onnxruntime", 3.0, 0.2,
    )  # fmt: skip


@pytest.mark.parametrize(("objective", "best"), [("fastest", "static-1"), ("smallest", "static-2"), (None, "static-1")])
def test_the_objective_decides_on_the_best(tmp_path: Path, objective: str | None, best: str) -> None:
    (search,) = found(
        tmp_path,
        trial("r1", NIGHT, 1, outcome="chosen", objective=objective, speedup=3.0, size_bytes=900),
        trial("r1", NIGHT, 2, outcome="chosen", objective=objective, speedup=2.0, size_bytes=300),
        trial("r1", NIGHT, 3, outcome="chosen", objective=objective, speedup=None, size_bytes=None),
    )
    assert search["recipe"] == best


def test_of_a_nights_searches_the_last_counts_even_if_a_later_run_did_not_search(tmp_path: Path) -> None:
    for hour, run in enumerate(("r2", "r1", "r3")):
        write_night(tmp_path, NIGHT, [measurement(run, NIGHT, measured_at=at(NIGHT, hour))], run)
    searches = found(
        tmp_path,
        trial("r1", NIGHT),
        trial("r2", NIGHT),
        trial("r2", NIGHT, workload="resnet18"),
        trial("r4", NIGHT + dt.timedelta(days=1)),
    )
    assert [(row["workload"], row["night"].day, row["run_id"]) for row in searches] == [
        ("word-lm", 2, "r4"), ("resnet18", 1, "r2"), ("word-lm", 1, "r1"),
    ]  # fmt: skip
