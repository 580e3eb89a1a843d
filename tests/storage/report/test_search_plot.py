from __future__ import annotations

import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.report.search import LOOKS, Search
from storage.report.search_plot import ceiling, search_plot
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


def test_a_step_without_a_measured_drop_keeps_its_number() -> None:
    numbered = texts(plot(tried(1, quality_drop=None), tried(2, speedup=3.0), tried(3, speedup=4.0)))
    assert numbered[-2:] == ["3", "2"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(-5, 30)), min_size=1, max_size=9))
@pytest.mark.slow
def test_numbers_of_steps_lie_within_the_axes_and_not_on_each_other(places: list[tuple[int, int]]) -> None:
    rows = [
        tried(index, speedup=speedup / 10, speedup_low=None, speedup_high=None, quality_drop=drop / 10,
              quality_drop_low=drop / 10 - 0.1, quality_drop_high=drop / 10 + 0.1)
        for index, (speedup, drop) in enumerate(places, 1)
    ]  # fmt: skip
    nodes = list(ElementTree.fromstring(plot(*rows)).iter("text"))
    labels = [float(node.attrib["x"]) for node in nodes if "text-anchor: end" in node.attrib["style"]]
    numbers = [node for node in nodes if "9px" in node.attrib["style"]]
    at = [(float(node.attrib["x"]), float(node.attrib["y"])) for node in numbers]
    assert str(len(Search(tuple(rows)).path)) in [node.text for node in numbers]
    assert all(x - 5 > max(labels) and y > 9 for x, y in at)
    assert all(max(abs(x - a), abs(y - b)) > 5 for index, (x, y) in enumerate(at) for a, b in at[:index])
