from __future__ import annotations

import math
import re
from typing import Any

import pytest

from storage.report.plots import ceiling, search_plot
from storage.report.search import LOOKS, Search
from tests.storage.report.test_plots import texts
from tests.storage.report.test_search import tried


def plot(*rows: dict[str, Any]) -> str:
    return search_plot("a title", Search(rows, "top1"))


def test_the_axes_say_what_is_better() -> None:
    assert {"speed-up (better →)", "quality drop in points (better ↓)"} <= set(texts(plot(tried())))
    smallest = plot(tried(objective="smallest", speedup=None, size_bytes=11_800_000))
    assert "size in MB (← better)" in texts(smallest)
    assert "quality drop in % (better ↓)" in texts(plot(tried(quality_unit="relative")))


@pytest.mark.parametrize("missing", ["quality_drop", "speedup"])
def test_without_both_numbers_there_is_no_picture(missing: str) -> None:
    assert plot(tried(**{missing: None})) == ""


def test_the_bound_is_drawn_if_there_is_one() -> None:
    assert "#a31515" in plot(tried())
    assert "#a31515" not in plot(tried(quality_bound=None))


def test_outcomes_differ_in_colour_and_only_the_chosen_are_filled() -> None:
    chosen, passing, failed = (plot(tried(outcome=outcome)).lower() for outcome in ("chosen", "passing", "failed"))
    blue, orange = (LOOKS[outcome].colour.lower() for outcome in ("passing", "failed"))
    assert f"fill: #ffffff; stroke: {blue}" in passing
    assert f"fill: #ffffff; stroke: {blue}" not in chosen
    assert blue in chosen
    assert f"fill: #ffffff; stroke: {orange}" in failed
    assert blue not in failed


def test_one_bad_trial_does_not_flatten_the_picture() -> None:
    bad = tried(2, outcome="failed", quality_drop=60.0, quality_drop_low=50.0, quality_drop_high=70.0)
    assert ceiling(Search((tried(), bad))) == 2.0
    ticks = [float(text.replace("−", "-")) for text in texts(plot(tried(), bad)) if re.fullmatch(r"[−\d.]+", text)]
    assert max(ticks) < 5
    assert ceiling(Search((bad | {"quality_bound": None},))) == math.inf
