from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from storage.results.catalog import refresh
from storage.results.regressions import Regression, acknowledge, compare_night
from storage.results.writer import ResultsStore
from storage.root import StoreRoot
from tests.storage.results.rows import at, baseline, measurement, promotion, write_night

FIRST = dt.date(2026, 3, 1)
Changes = Callable[[int], dict[str, Any]]
SHARED = {"workload", "profile", "machine"}  # what a run's baseline has in common with its candidates
FAILED = {
    "status": "failed", "stage": "quantize", "error": "no", "verdict": "not-measured", "fingerprint": None,
    "machine": None, "speedup": None, "speedup_low": None, "speedup_high": None, "latency_s": None, "size_bytes": None,
    "quality": None, "quality_difference": None, "quality_difference_low": None, "quality_difference_high": None,
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

    A recipe with a ``!`` behind it failed: like a night's own rows, that has no machine and no numbers.
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


def find_regressions(store: Path, night: dt.date | None = None) -> list[Regression]:
    return list(compare_night(store, night).findings)


def listed(store: Path, index: int | None = None) -> list[tuple[str, str]]:
    """What is found about which recipe, on the night of that index or on the newest one."""
    refresh(store)
    night = None if index is None else FIRST + dt.timedelta(days=index)
    return [(found.recipe, found.kind) for found in find_regressions(store, night)]


def kinds(store: Path, night: dt.date | None = None) -> list[tuple[str, str]]:
    return [(found.kind, found.metric) for found in find_regressions(store, night)]


def from_night(start: int, **changes: Any) -> Changes:
    return lambda index: changes if index >= start else {}


def cold(speedup: float) -> dict[str, Any]:
    ends = {"cold_speedup_low": speedup * 0.99, "cold_speedup_high": speedup * 1.01}
    return {"caches": "cold", "cold_speedup": speedup, **ends}


def around(speedup: float, factor: float, **more: Any) -> dict[str, Any]:
    return {"speedup": speedup, "speedup_low": speedup / factor, "speedup_high": speedup * factor, **more}


VAGUE = {"speedup": 1.5, "speedup_low": 1.0, "speedup_high": 2.3, "verdict": "inconclusive"}
WIDE = {"verdict": "inconclusive", "speedup_low": 1.2, "speedup_high": 3.3}


@pytest.mark.parametrize(
    ("count", "changes", "found"),
    [
        pytest.param(1, lambda index: {}, False, id="a first night"),
        pytest.param(14, lambda index: {}, False, id="similar nights"),
        pytest.param(14, lambda index: {"speedup": 1.5} if index in (9, 13) else {}, False, id="one bad night"),
        pytest.param(14, lambda index: VAGUE if index % 3 == 0 or index > 11 else {}, False, id="inconclusive nights"),
        pytest.param(4, from_night(2, speedup=1.5), False, id="too short a history"),
        pytest.param(14, from_night(12, **cold(1.0)), False, id="other caches are another history"),
        pytest.param(
            14, lambda index: cold(4.0) | ({"speedup": 1.8} if index >= 12 else {}), False, id="cold caches decide"
        ),
        pytest.param(14, from_night(12, caches="warm", speedup=1.8), True, id="rows from before there were cold calls"),
        pytest.param(
            12,
            lambda index: around(1.5 if index >= 10 else 2.0, 1.5, launches=2),
            True,
            id="two wide launches",
        ),
        pytest.param(25, lambda index: {"speedup": 2.0 * 0.99 ** max(index - 12, 0)}, True, id="a slow decline"),
        pytest.param(
            20, lambda index: WIDE if index < 15 else WIDE | around(1.0, 1.65), True, id="every night is inconclusive"
        ),
    ],
)
@pytest.mark.slow
def test_a_slow_down_is_distinguished_from_noise(tmp_path: Path, count: int, changes: Changes, found: bool) -> None:
    nights(tmp_path, count, changes)
    assert kinds(tmp_path) == [("slower", "speedup")] * found


@pytest.mark.slow
def test_a_slow_down_is_an_alert_on_its_second_night(tmp_path: Path) -> None:
    nights(tmp_path, 14, from_night(12, speedup=1.8))
    assert kinds(tmp_path, FIRST + dt.timedelta(days=12)) == []
    (found,) = find_regressions(tmp_path)
    assert dataclasses.asdict(found) == {
        "workload": "word-lm",
        "recipe": "dynamic",
        "runtime": "eager",
        "kind": "slower",
        "metric": "speedup",
        "tonight": pytest.approx(1.8),
        "tonight_low": pytest.approx(1.782, rel=1e-3),
        "tonight_high": pytest.approx(1.818, rel=1e-3),
        "reference": pytest.approx(2.0),
        "change": pytest.approx(-0.1),
        "nights": 12,
        "since": FIRST + dt.timedelta(days=12),
        "cause": "",
        "changed": "nothing known",
        "machine": "m" * 64,
        "fingerprint": "f" * 64,
    }
    assert found.is_bad


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"speedup": 1.96}, []),  # less than the least effect
        ({"speedup": 1.8, "speedup_low": 1.3, "speedup_high": 2.3}, []),  # the intervals are too wide
        ({"speedup": 2.3}, [("improved", "speedup")]),
        ({"size_bytes": 440}, [("larger", "size_bytes")]),
        ({"size_bytes": 404}, []),
        ({"size_bytes": 300}, [("improved", "size_bytes")]),
        (
            {"quality_difference": 0.2, "quality_difference_low": 0.19, "quality_difference_high": 0.21},
            [("worse", "quality_difference")],
        ),
        ({"quality_difference": 0.2, "quality_difference_low": 0.05, "quality_difference_high": 0.4}, []),
        # 0.01 of a loss of 4.0, with an interval that clears: certain, and too little to matter
        ({"quality_difference": 0.11, "quality_difference_low": 0.109, "quality_difference_high": 0.111}, []),
        (
            {"quality_difference": 0.0, "quality_difference_low": -0.01, "quality_difference_high": 0.01},
            [("improved", "quality_difference")],
        ),
    ],
)
@pytest.mark.slow
def test_only_some_findings_are_alerts(
    tmp_path: Path, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    nights(tmp_path, 14, from_night(12, **changes))
    assert kinds(tmp_path) == expected


@pytest.mark.slow
def test_numbers_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    nights(tmp_path, 1)
    first = compare_night(tmp_path)
    assert first.compared == ()
    assert "word-lm dynamic/eager speedup" in first.incomparable
    nights(tmp_path, 12, lambda index: {"speedup_low": 1.2, "speedup_high": 3.3})
    vague = compare_night(tmp_path)
    assert vague.incomparable == ("word-lm dynamic/eager speedup",)
    assert "word-lm dynamic/eager size_bytes" in vague.compared
    assert vague.of({"resnet18"}).compared == ()


@pytest.mark.parametrize(("higher_is_better", "kind"), [(True, "worse"), (False, "improved")])
@pytest.mark.slow
def test_quality_without_an_interval_goes_by_its_direction(tmp_path: Path, higher_is_better: bool, kind: str) -> None:
    plain = {"quality_difference_low": None, "quality_difference_high": None, "higher_is_better": higher_is_better}
    nights(tmp_path, 14, lambda index: {**plain, "quality": 4.1 if index < 12 else 3.9})
    assert kinds(tmp_path) == [(kind, "quality")]


@pytest.mark.slow
def test_speed_on_another_machine_is_another_history_and_size_and_quality_are_not(tmp_path: Path) -> None:
    elsewhere = {"speedup": 1.5, "size_bytes": 800, "machine": "0" * 64}
    here = {"machine": "1" * 64, "environment": '{"torch":"2.15"}'}
    nights(tmp_path, 14, lambda index: here | (elsewhere if index >= 12 else {}))
    (found,) = find_regressions(tmp_path)
    assert (found.kind, found.cause, found.changed) == ("larger", "machine", "another machine")
    assert "word-lm dynamic/eager speedup" in compare_night(tmp_path).incomparable


@pytest.mark.slow
def test_a_new_environment_goes_on_with_the_history_and_is_named_with_its_versions(tmp_path: Path) -> None:
    old, new = ({"environment": f'{{"kernel":"6.1","torch":"2.{minor}"}}', "machine": "1" * 64} for minor in (14, 15))
    new |= {"fingerprint": "0" * 64, "speedup": 0.5, "size_bytes": 800}
    new |= {"quality_difference": 1.0, "quality_difference_low": 0.9, "quality_difference_high": 1.1}
    nights(tmp_path, 14, lambda index: old if index < 12 else new)
    found = find_regressions(tmp_path)
    assert {each.kind for each in found} == {"slower", "larger", "worse"}
    assert {(each.cause, each.changed) for each in found} == {("environment", "environment: torch 2.14 → 2.15")}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"data_digest": "2", "checkpoint_digest": "2", "calibration_digest": "2"}, "data"),
        ({"checkpoint_digest": "2"}, "checkpoint"),
        ({"calibration_digest": "2"}, "calibration"),
        ({"recipe_digest": "2", "source_digest": "2"}, "recipe,source"),
        ({"artifact_digest": "2"}, "artifact"),
        ({}, ""),
    ],
)
@pytest.mark.slow
def test_changed_inputs_are_named_but_not_their_consequences(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    names = ("data", "checkpoint", "calibration", "recipe", "source", "artifact")
    made = {f"{name}_digest": "1" for name in names}
    nights(tmp_path, 14, lambda index: made if index < 11 else made | changes | {"speedup": 1.7, "size_bytes": 900})
    assert {found.cause for found in find_regressions(tmp_path)} == {cause}


@pytest.mark.slow
def test_a_finding_names_every_change_of_its_night(tmp_path: Path) -> None:
    def columns(index: int) -> dict[str, Any]:
        changed = index >= 12
        environment = f'{{"torch":"2.{15 if changed else 14}"}}'
        return {"environment": environment, "recipe_digest": str(changed), "speedup": 1.6 if changed else 2.0}

    nights(tmp_path, 14, columns)
    (found,) = find_regressions(tmp_path)
    assert (found.cause, found.changed) == ("environment,recipe", "environment: torch 2.14 → 2.15, recipe")


def promote(store: Path, index: int, version: str) -> None:
    night, run = FIRST + dt.timedelta(days=index), f"run-{index:02}"
    ResultsStore(store).append("promotions", [promotion(run, night, bundle_version=version)], run, at(night))
    refresh(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe_digest", "still"), [("1", [("slower", "speedup")]), ("2", [])], ids=["same recipe", "new recipe"]
)
def test_a_promotion_is_a_new_reference_from_the_night_after_on_but_for_speed_only_with_a_new_recipe(
    tmp_path: Path, recipe_digest: str, still: list[tuple[str, str]]
) -> None:
    slower = {"speedup": 1.8, "size_bytes": 440, "recipe_digest": recipe_digest}
    nights(tmp_path, 16, lambda index: slower if index >= 12 else {"recipe_digest": "1"})
    promote(tmp_path, 3, "first")
    promote(tmp_path, 11, "first")  # promoting the same bundle again accepts nothing
    assert len(listed(tmp_path)) == 2
    promote(tmp_path, 14, "second")
    assert len(listed(tmp_path, 14)) == 2
    assert kinds(tmp_path, FIRST + dt.timedelta(days=15)) == still


@pytest.mark.slow
def test_an_acknowledged_regression_is_not_reported_again_and_is_the_new_reference(tmp_path: Path) -> None:
    nights(tmp_path, 14, from_night(12, speedup=1.8, size_bytes=440))
    (accepted,) = acknowledge(
        StoreRoot.of(tmp_path), None, workloads=["word-lm"], metrics=["size_bytes"], by="me", reason="a larger table"
    )
    assert accepted.metric == "size_bytes"
    assert kinds(tmp_path) == [("slower", "speedup")]
    nights(tmp_path, 20, from_night(12, speedup=1.8, size_bytes=440))
    assert kinds(tmp_path) == [("slower", "speedup")]
    nights(tmp_path, 21, lambda index: {"size_bytes": 500})
    assert [each.reference for each in find_regressions(tmp_path) if each.metric == "size_bytes"] == [440]


def test_candidates_that_appeared_and_vanished_are_listed(tmp_path: Path) -> None:
    nights(tmp_path, 3, lambda index: {"recipe": "new"} if index == 2 else {"recipe": "old"})
    assert [(found.recipe, found.kind, found.is_bad) for found in find_regressions(tmp_path)] == [
        ("new", "appeared", False),
        ("old", "vanished", True),
    ]
    assert find_regressions(tmp_path)[0].tonight is None


@pytest.mark.parametrize("narrow", [{}, {"profile": "quick"}, {"machine": "0" * 64}])
@pytest.mark.parametrize("hour", [1, 9])
@pytest.mark.parametrize(("speedup", "kind"), [(1.5, "slower"), (2.5, "improved")])
@pytest.mark.slow
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


def test_of_a_candidate_measured_twice_a_night_the_last_size_counts_and_both_speeds_do(tmp_path: Path) -> None:
    for index in range(8):
        a_run(tmp_path, index, "a", speedup=2.0 if index < 5 else 1.5, size_bytes=400 if index < 5 else 500)
    a_run(tmp_path, 7, "a", hour=9)
    refresh(tmp_path)
    assert [(found.metric, found.tonight) for found in find_regressions(tmp_path)] == [
        ("speedup", pytest.approx((1.5 * 2.0) ** 0.5))
    ]


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        pytest.param([(0, "ab"), (1, "a"), (2, "a")], {1: [("b", "vanished")], 2: []}, id="once"),
        pytest.param([(0, "a"), (1, "a"), (2, ("a!",)), (3, "a")], {2: [], 3: []}, id="not by a failure"),
        pytest.param(
            [(0, "a"), (1, ("a", "n!")), (2, "a")],
            {1: [("n", "appeared")], 2: [("n", "vanished")]},
            id="failed",
        ),
        pytest.param([(0, "ab"), (1, ("a!",))], {1: [("b", "vanished")]}, id="beside another's failure"),
        pytest.param(
            [(0, "abc"), (0, "abc", 5), (1, "ab"), (1, "ab", 5), (1, "a", 9)], {1: [("c", "vanished")]}, id="of no run"
        ),
        pytest.param(
            [(0, ("a", "b!", "c")), (0, "a", 9), (1, "ab")], {1: [("c", "vanished")]}, id="the night before of some"
        ),
        pytest.param(
            [(0, "abc"), (1, "a"), (2, "ab"), (3, "ab")], {2: [("c", "vanished")], 3: []}, id="after a night of some"
        ),
        pytest.param(
            [(0, "ab"), *((index, "a") for index in range(1, 11)), (11, "ab")],
            {11: [("b", "appeared")]},
            id="back",
        ),
    ],
)
@pytest.mark.slow
def test_a_candidate_has_appeared_or_vanished_only_compared_with_recent_nights(
    tmp_path: Path, runs: list[Any], found: dict[int, list[tuple[str, str]]]
) -> None:
    for index, recipes, *hour in runs:
        profile = {"profile": "quick"} if hour == [5] else {}
        a_run(tmp_path, index, *recipes, hour=hour[0] if hour else 3, **profile)
    assert {index: listed(tmp_path, index) for index in found} == found


def record(store: Path, index: int, hour: int = 3) -> None:
    """Write what was found, as the run of that hour does."""
    refresh(store)
    night = FIRST + dt.timedelta(days=index)
    run = f"run-{index:02}-{hour:02}"
    if rows := compare_night(store, night).rows(run, night):
        ResultsStore(store).append("findings", rows, run, at(night, hour))
    refresh(store)


def in_view(store: Path) -> list[tuple[str, str]]:
    with duckdb.connect(store / "results.duckdb", read_only=True) as connection:
        rows: list[tuple[str, str]] = connection.execute("select recipe, kind from regressions").fetchall()
    return rows


@pytest.mark.slow
def test_the_view_shows_the_unaccepted_findings_of_the_newest_nights_last_run(tmp_path: Path) -> None:
    for index in range(3):
        a_run(tmp_path, index, "a", size_bytes=400 if index < 2 else 500)
    record(tmp_path, 2)
    assert in_view(tmp_path) == listed(tmp_path) == [("a", "larger")]
    a_run(tmp_path, 2, "a", hour=9)
    record(tmp_path, 2, hour=9)
    assert in_view(tmp_path) == listed(tmp_path) == []
    a_run(tmp_path, 3, "a", size_bytes=500)
    record(tmp_path, 3)
    assert in_view(tmp_path) == listed(tmp_path) == [("a", "larger")]
    acknowledge(StoreRoot.of(tmp_path), None, workloads=["word-lm"], by="me", reason="it does more")
    assert in_view(tmp_path) == listed(tmp_path) == []


def rebased(store: Path, later: float) -> list[tuple[str, str]]:
    """Eight nights over float/eager, then two over float/openvino, on which the candidate is `later` times as fast."""
    for index in range(10):
        night, run = FIRST + dt.timedelta(days=index), f"run-{index:02}"
        is_new = index >= 8
        name = "float/openvino" if is_new else "float/eager"
        # float/openvino is four times as fast as float/eager, and the candidate eight times.
        floats = [
            baseline(run, night, baseline=name, is_baseline=not is_new, speedup=0.25 if is_new else None),
            baseline(
                run, night, runtime="openvino", baseline=name, is_baseline=is_new, speedup=None if is_new else 4.0
            ),
        ]
        speedup = later if is_new else 8.0
        write_night(store, night, [*floats, measurement(run, night, baseline=name, speedup=speedup)], run)
    refresh(store)
    return [(finding.recipe, finding.kind) for finding in find_regressions(store)]


def test_a_new_baseline_does_not_begin_a_new_history(tmp_path: Path) -> None:
    assert rebased(tmp_path / "same", 2.0) == []
    assert rebased(tmp_path / "slower", 1.5) == [("dynamic", "slower")]
