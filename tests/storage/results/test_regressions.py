from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from storage.results.catalog import refresh
from storage.results.regressions import Regression, find_regressions
from tests.storage.results.rows import at, baseline, measurement, write_night

FIRST = dt.date(2026, 3, 1)
Changes = Callable[[int], dict[str, Any]]
SHARED = {"workload", "profile", "fingerprint"}  # what a run's baseline has in common with its candidates
FAILED = {
    "status": "failed", "stage": "quantize", "error": "no", "verdict": "not-measured", "fingerprint": None,
    "speedup": None, "speedup_low": None, "speedup_high": None, "latency_s": None, "size_bytes": None, "quality": None,
    "quality_difference": None, "quality_difference_low": None, "quality_difference_high": None,
}  # fmt: skip


def nights(store: Path, count: int, changes: Changes = lambda index: {}) -> None:
    """Nights with a baseline and a candidate that has these changes on the night of that index."""
    for index in range(count):
        night = FIRST + dt.timedelta(days=index)
        run = f"run-{index:02}"
        write_night(store, night, [baseline(run, night), measurement(run, night, **changes(index))], run)
    refresh(store)


def a_run(store: Path, index: int, *recipes: str, hour: int = 3, **changes: Any) -> None:
    """A run on the night of that index: the baseline and these recipes, each with these changes.

    A recipe with a ``!`` behind it failed: like a night's own rows, that has no fingerprint and no numbers.
    """
    night = FIRST + dt.timedelta(days=index)
    run = f"run-{index:02}-{hour:02}"
    common = {"measured_at": at(night, hour)} | {name: changes[name] for name in SHARED & changes.keys()}
    rows = [baseline(run, night, **common)]
    for recipe in recipes:
        if recipe.endswith("!"):
            rows.append(measurement(run, night, **(common | FAILED | {"recipe": recipe[:-1]})))
        else:
            rows.append(measurement(run, night, **(common | changes | {"recipe": recipe})))
    write_night(store, night, rows, run)


def listed(store: Path, index: int | None = None) -> list[tuple[str, str]]:
    """What is found about which recipe, on the night of that index or on the newest one."""
    refresh(store)
    night = None if index is None else FIRST + dt.timedelta(days=index)
    return [(found.recipe, found.kind) for found in find_regressions(store, night)]


def kinds(store: Path, night: dt.date | None = None) -> list[tuple[str, str]]:
    return [(found.kind, found.metric) for found in find_regressions(store, night)]


def from_night(start: int, **changes: Any) -> Changes:
    return lambda index: changes if index >= start else {}


def test_a_first_night_has_nothing_to_be_compared_to(tmp_path: Path) -> None:
    nights(tmp_path, 1)
    assert kinds(tmp_path) == []


def test_similar_nights_raise_nothing(tmp_path: Path) -> None:
    nights(tmp_path, 14)
    assert kinds(tmp_path) == []


def test_a_slow_down_is_an_alert_on_its_second_night(tmp_path: Path) -> None:
    nights(tmp_path, 14, from_night(12, speedup=1.8))
    assert kinds(tmp_path, FIRST + dt.timedelta(days=12)) == []
    (found,) = find_regressions(tmp_path)
    assert dataclasses.asdict(found) == {
        "workload": "word-lm",
        "recipe": "dynamic",
        "runtime": "eager",
        "fingerprint": "f" * 64,
        "kind": "slower",
        "metric": "speedup",
        "tonight": 1.8,
        "tonight_low": pytest.approx(1.782),
        "tonight_high": pytest.approx(1.818),
        "reference": 2.0,
        "change": pytest.approx(-0.1),
        "nights": 10,
    }
    assert found.is_bad


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"speedup": 1.96}, []),  # less than the least effect
        ({"speedup": 1.8, "speedup_high": 1.95}, []),  # the interval does not clear
        ({"speedup": 2.3}, [("improved", "speedup")]),
        ({"size_bytes": 440}, [("larger", "size_bytes")]),
        ({"size_bytes": 404}, []),
        ({"size_bytes": 300}, [("improved", "size_bytes")]),
        (
            {"quality_difference": 0.2, "quality_difference_low": 0.19, "quality_difference_high": 0.21},
            [("worse", "quality_difference")],
        ),
        ({"quality_difference": 0.2, "quality_difference_low": 0.05, "quality_difference_high": 0.4}, []),
        (
            {"quality_difference": 0.0, "quality_difference_low": -0.01, "quality_difference_high": 0.01},
            [("improved", "quality_difference")],
        ),
    ],
)
def test_what_is_an_alert(tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    nights(tmp_path, 14, from_night(12, **changes))
    assert kinds(tmp_path) == expected


@pytest.mark.parametrize(("higher_is_better", "kind"), [(True, "worse"), (False, "improved")])
def test_quality_without_an_interval_goes_by_its_direction(tmp_path: Path, higher_is_better: bool, kind: str) -> None:
    plain = {"quality_difference_low": None, "quality_difference_high": None, "higher_is_better": higher_is_better}
    nights(tmp_path, 14, lambda index: {**plain, "quality": 4.1 if index < 12 else 3.9})
    assert kinds(tmp_path) == [(kind, "quality")]


def test_one_bad_night_is_no_alert(tmp_path: Path) -> None:
    nights(tmp_path, 14, lambda index: {"speedup": 1.5} if index in (9, 13) else {})
    assert kinds(tmp_path) == []


def test_an_inconclusive_night_is_no_history_and_no_alert(tmp_path: Path) -> None:
    nights(
        tmp_path, 14, lambda index: {"speedup": 1.5, "verdict": "inconclusive"} if index % 3 == 0 or index > 11 else {}
    )
    assert kinds(tmp_path) == []


def test_another_host_is_another_history(tmp_path: Path) -> None:
    nights(tmp_path, 14, from_night(12, speedup=1.5, fingerprint="0" * 64))
    assert ("slower", "speedup") not in kinds(tmp_path)


def test_too_short_a_history_raises_nothing(tmp_path: Path) -> None:
    nights(tmp_path, 4, from_night(2, speedup=1.5))
    assert kinds(tmp_path) == []


def test_candidates_that_appeared_and_vanished_are_listed(tmp_path: Path) -> None:
    nights(tmp_path, 3, lambda index: {"recipe": "new"} if index == 2 else {"recipe": "old"})
    assert [(found.recipe, found.kind, found.is_bad) for found in find_regressions(tmp_path)] == [
        ("new", "appeared", False),
        ("old", "vanished", True),
    ]
    assert find_regressions(tmp_path)[0].tonight is None


def test_a_candidate_that_vanished_is_listed_on_one_night_only(tmp_path: Path) -> None:
    for index, recipes in enumerate((("a", "b"), ("a",), ("a",))):
        a_run(tmp_path, index, *recipes)
    assert listed(tmp_path, 1) == [("b", "vanished")]
    assert listed(tmp_path, 2) == []


def test_a_candidate_that_failed_has_neither_vanished_nor_appeared_the_night_after(tmp_path: Path) -> None:
    for index, recipe in enumerate(("a", "a", "a!", "a")):
        a_run(tmp_path, index, recipe)
    assert listed(tmp_path, 2) == []
    assert listed(tmp_path, 3) == []


def test_a_new_candidate_that_fails_has_appeared_and_one_that_is_gone_after_its_failure_has_vanished(
    tmp_path: Path,
) -> None:
    for index, recipes in enumerate((("a",), ("a", "new!"), ("a",))):
        a_run(tmp_path, index, *recipes)
    assert listed(tmp_path, 1) == [("new", "appeared")]
    assert listed(tmp_path, 2) == [("new", "vanished")]


def test_a_candidate_that_goes_while_another_fails_has_vanished(tmp_path: Path) -> None:
    a_run(tmp_path, 0, "a", "b")
    a_run(tmp_path, 1, "a!")
    assert listed(tmp_path) == [("b", "vanished")]


@pytest.mark.parametrize("narrow", [{}, {"profile": "quick"}, {"fingerprint": "0" * 64}])
@pytest.mark.parametrize("hour", [1, 9])
@pytest.mark.parametrize(("speedup", "kind"), [(1.5, "slower"), (2.5, "improved")])
def test_a_run_of_some_recipes_hides_nothing_of_the_nights_full_run(
    tmp_path: Path, narrow: dict[str, Any], hour: int, speedup: float, kind: str
) -> None:
    a_run(tmp_path, 1, "b", hour=hour, **narrow)  # so that each host and profile has a night before
    for index in range(7):
        a_run(tmp_path, index, "a", "b", speedup=2.0 if index < 5 else speedup)
    a_run(tmp_path, 6, "b", hour=hour, speedup=speedup, **narrow)
    found = listed(tmp_path)
    assert found == listed(tmp_path, 6)
    assert [one for one in found if one[0] == "a"] == [("a", kind)]
    assert {of for _, of in found} == {kind}


def test_a_run_of_another_workload_hides_nothing_of_the_nights_full_run(tmp_path: Path) -> None:
    for index in range(7):
        a_run(tmp_path, index, "a", speedup=2.0 if index < 5 else 1.5)
    a_run(tmp_path, 6, "a", hour=9, workload="resnet18")
    assert listed(tmp_path) == listed(tmp_path, 6) == [("a", "slower")]


def test_of_a_candidate_measured_twice_a_night_the_last_measurement_counts(tmp_path: Path) -> None:
    for index in range(7):
        a_run(tmp_path, index, "a", speedup=2.0 if index < 5 else 1.5)
    a_run(tmp_path, 6, "a", hour=9)
    assert listed(tmp_path) == []


def test_a_later_failure_leaves_the_nights_earlier_measurement_to_be_compared(tmp_path: Path) -> None:
    for index in range(7):
        a_run(tmp_path, index, "a", speedup=2.0 if index < 5 else 1.5)
    a_run(tmp_path, 6, "a!", hour=9)
    assert listed(tmp_path) == [("a", "slower")]


def test_a_candidate_that_no_run_of_the_night_has_is_listed_once_as_vanished(tmp_path: Path) -> None:
    for index, recipes in enumerate((("a", "b", "c"), ("a", "b"))):
        a_run(tmp_path, index, *recipes)
        a_run(tmp_path, index, *recipes, hour=5, profile="quick")
    a_run(tmp_path, 1, "a", hour=9)
    assert listed(tmp_path) == [("c", "vanished")]


def test_a_run_of_some_recipes_the_night_before_does_not_hide_what_its_full_run_had(tmp_path: Path) -> None:
    a_run(tmp_path, 0, "a", "b!", "c")
    a_run(tmp_path, 0, "a", hour=9)
    a_run(tmp_path, 1, "a", "b")
    assert listed(tmp_path) == [("c", "vanished")]


def test_after_a_night_of_some_recipes_only_the_others_have_not_appeared_and_the_removed_have_vanished(
    tmp_path: Path,
) -> None:
    for index, recipes in enumerate((("a", "b", "c"), ("a",), ("a", "b"), ("a", "b"))):
        a_run(tmp_path, index, *recipes)
    assert listed(tmp_path, 2) == [("c", "vanished")]
    assert listed(tmp_path, 3) == []


def test_a_candidate_that_comes_back_after_many_nights_has_appeared(tmp_path: Path) -> None:
    a_run(tmp_path, 0, "a", "b")
    for index in range(1, 11):
        a_run(tmp_path, index, "a")
    a_run(tmp_path, 11, "a", "b")
    assert listed(tmp_path) == [("b", "appeared")]


def test_a_workload_that_was_not_asked_for_has_not_vanished(tmp_path: Path) -> None:
    nights(tmp_path, 3)
    last = FIRST + dt.timedelta(days=3)
    write_night(tmp_path, last, [measurement("other", last, workload="resnet18")], "other")
    refresh(tmp_path)
    assert kinds(tmp_path, last) == []


def test_the_view_says_the_same_as_the_function(tmp_path: Path) -> None:
    nights(tmp_path, 14, from_night(12, speedup=1.8))
    with duckdb.connect(tmp_path / "results.duckdb", read_only=True) as connection:
        assert find_regressions(connection) == find_regressions(tmp_path)
        assert connection.execute("select workload, kind from regressions").fetchall() == [("word-lm", "slower")]
    assert isinstance(find_regressions(tmp_path)[0], Regression)
