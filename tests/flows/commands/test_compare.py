from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands.query import compare_runs
from storage.errors import ConfigurationError, StoreError
from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from tests.flows.commands.filled_store import NIGHTS, RUNS, write
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row

NightQuant = Callable[..., tuple[int, str]]
BEFORE, AFTER = (json.dumps({"torch": torch}) for torch in ("2.14.0", "2.15.0"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two nights: everything got another torch, one candidate another recipe; one is gone, one is new."""
    rows = [
        [
            baseline(run, day, environment=environment, recipe_digest="0"),
            measurement(run, day, speedup=speedup, environment=environment, recipe_digest=recipe, size_bytes=size),
            measurement(run, day, recipe=other, environment=environment),
        ]
        for run, day, environment, speedup, recipe, size, other in zip(
            RUNS, NIGHTS, (BEFORE, AFTER), (2.0, 1.5), "ab", (400, 500), ("gone", "new"), strict=True
        )
    ]
    write(tmp_path, 0, measurements=rows[0])
    write(tmp_path, 1, measurements=rows[1], promotions=[promotion(RUNS[1], NIGHTS[1], decision="hold", reason="why")])
    return tmp_path


@pytest.mark.slow
def test_both_runs_of_each_candidate_are_shown_and_common_changes_are_listed_once(
    store: Path, nightquant: NightQuant
) -> None:
    found = compare_runs(str(store), *RUNS)
    assert found.changed == {"environment": "environment: torch 2.14.0 → 2.15.0"}
    assert [pair.candidate for pair in found.pairs if "recipe" in pair.changed] == ["dynamic/eager"]
    code, shown = nightquant("compare", *RUNS, "--store", store)
    assert code == 0
    assert "environment: torch 2.14.0 → 2.15.0" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    at = lines.index("dynamic/eager")
    assert lines[at + 1 : at + 3] == ["A 2.00× ±1% 2.50× +0.1 promoted", "B 1.50× ±1% 2.50× +0.1 held"]
    remarks = " ".join(lines[at + 3 : at + 5])
    assert remarks.startswith("≠ 25% slower, intervals apart; size +25%; promoted → held: why; recipe")
    assert "gone/eager (only in A)" in lines
    assert "new/eager (only in B)" in lines


@pytest.mark.parametrize(("low", "high", "is_apart"), [(1.0, 1.9, True), (1.0, 1.99, False)])
def test_speedups_differ_only_if_their_intervals_do_not_overlap(
    low: float, high: float, is_apart: bool, tmp_path: Path
) -> None:
    write(tmp_path, 0)
    row = measurement(RUNS[1], NIGHTS[1], speedup=1.5, speedup_low=low, speedup_high=high)
    write(tmp_path, 1, measurements=[row])
    pairs = {pair.candidate: pair for pair in compare_runs(str(tmp_path), *RUNS).pairs}
    assert (pairs["dynamic/eager"].is_apart, pairs["dynamic/eager"].times_as_fast) == (is_apart, 0.75)


@pytest.mark.slow
def test_a_night_stands_for_all_of_its_runs_and_a_run_for_itself(store: Path) -> None:
    later, now = "run-of-the-same-night", at(NIGHTS[1], 6)
    results = ResultsStore(store)
    results.append("measurements", [measurement(later, NIGHTS[1], speedup=7.0, measured_at=now)], later, now)
    results.append("runs", [run_row(later, NIGHTS[1], started_at=now)], later, now)
    refresh(store)
    found = compare_runs(str(store), RUNS[1], str(NIGHTS[1]))
    assert [row["run_id"] for row in found.after] == [RUNS[1], later]
    speeds = {pair.candidate: pair.after and pair.after["speedup"] for pair in found.pairs}
    assert (speeds["dynamic/eager"], speeds["new/eager"]) == (7.0, 2.0)


@pytest.mark.slow
def test_an_unknown_run_is_refused_with_a_list_of_runs(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"no run or night \"x\".*{RUNS[1]}"):
        compare_runs(str(store), RUNS[0], "x")
    with pytest.raises(StoreError, match="has no results"):
        compare_runs(str(tmp_path / "none"), *RUNS)


def test_runs_are_compared_by_the_caches_that_decided_in_the_second(tmp_path: Path) -> None:
    def run(index: int, **changes: object) -> None:
        row = measurement(RUNS[index], NIGHTS[index], **changes)
        write(tmp_path, index, measurements=[baseline(RUNS[index], NIGHTS[index]), row])

    cold = {"cold_speedup_low": 3.9, "cold_speedup_high": 4.1}
    run(0, speedup=2.0, caches="warm", cold_speedup=4.0, **cold)
    run(1, speedup=1.0, caches="cold", cold_speedup=4.0, **cold)
    there, back = (compare_runs(str(tmp_path), *runs).pairs[-1] for runs in (RUNS, RUNS[::-1]))
    assert (there.times_as_fast, there.is_apart) == (1.0, False)
    assert (back.times_as_fast, back.is_apart) == (2.0, True)
