from __future__ import annotations

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from storage.report.night import Event, History, marks_of
from storage.report.plots import drawing, history_plot, quality_plot

NAMES = ["dynamic/eager", "static/eager"]
MARKS = marks_of(NAMES)
NIGHT = dt.date(2026, 3, 1)


def row(name: str = NAMES[0], **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "deciding_speedup": 2.0, "deciding_speedup_low": 1.8, "deciding_speedup_high": 2.2,
        "quality_metric": "top1", "higher_is_better": True, "quality_difference": -0.2, "quality_difference_low": -0.3,
        "quality_difference_high": -0.1, "night": NIGHT,
    } | changes  # fmt: skip


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("text")]


def quality(*rows: dict[str, Any], bounds: dict[str, float] | None = None, current: str = "") -> str:
    return quality_plot("a title", rows, MARKS, bounds or {}, current)


def test_an_axis_has_the_metrics_unit() -> None:
    assert "top1 − the baseline's in points (better →)" in texts(quality(row()))


def test_better_is_to_the_right_whatever_the_metric() -> None:
    def ticks(svg: str) -> list[float]:
        """The horizontal axis's numbers from left to right: its labels share their height."""
        nodes = [
            node for node in ElementTree.fromstring(svg).iter("text") if re.fullmatch(r"−?[\d.]+", node.text or "")
        ]
        lowest = max(float(node.attrib["y"]) for node in nodes)
        labels = sorted(
            (float(node.attrib["x"]), node.text or "") for node in nodes if float(node.attrib["y"]) == lowest
        )
        return [float(text.replace("−", "-")) for _, text in labels]

    up = ticks(quality(row(), row(NAMES[1], quality_difference=0.1)))
    down = ticks(quality(row(higher_is_better=False), row(NAMES[1], quality_difference=0.1)))
    assert len(up) > 2
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)


@pytest.mark.slow
def test_the_current_bundle_is_ringed_and_a_near_bound_drawn() -> None:
    plain, ringed, near, far = (
        quality(row(), **changes)
        for changes in ({}, {"current": NAMES[0]}, {"bounds": {"min_speedup": 1.05}}, {"bounds": {"min_speedup": 40.0}})
    )  # type: ignore[arg-type]
    assert len(ringed) > len(plain)
    assert "#a31515" in near
    assert far == plain


def test_events_are_numbered_and_changes_and_alarms_have_lines() -> None:
    nights = [NIGHT + dt.timedelta(days=each) for each in range(4)]
    rows = {NAMES[0]: [row(night=night) for night in nights]}
    events = (Event(nights[1], promoted=(NAMES[0],)), Event(nights[2], ("torch",)), Event(nights[3], alarms=("slow",)))
    svg = history_plot("t", History(rows, events), NAMES[:1], MARKS)
    assert {"1", "2", "3"} <= set(texts(svg))
    assert {str(night) for night in nights} <= set(texts(svg))
    assert ("#5b3a8c" in svg, "#a31515" in svg) == (True, True)


@pytest.mark.parametrize("missing", ["deciding_speedup", "quality_difference"])
@pytest.mark.slow
def test_nothing_to_show_is_no_picture(missing: str) -> None:
    assert quality(row(**{missing: None})) == ""
    assert history_plot("t", History({NAMES[0]: [row()]}, ()), NAMES[:1], MARKS) == ""


def test_a_picture_is_named_described_and_the_same_every_time() -> None:
    def draw(title: str) -> str:
        with drawing(title, "two <points>") as picture:
            picture.axes.plot([0.123456, 1], [0, 1])
            picture.axes.set_xticks([0.0625])
        return picture.svg

    svg = draw("a & b")
    root = ElementTree.fromstring(svg)
    named = {node.attrib["id"]: node.text for node in root if "id" in node.attrib}
    assert root.attrib["role"] == "img"
    assert named[root.attrib["aria-labelledby"]] == "a & b"
    assert named[root.attrib["aria-describedby"]] == "two <points>"
    assert svg == draw("a & b")
    assert "0.0625" in texts(svg)
    attributes = [value for node in root.iter() for value in node.attrib.values()]
    assert not re.search(r"\d\.\d{3}", " ".join(attributes))
