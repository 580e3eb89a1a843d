from __future__ import annotations

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree

from storage.report.night import Event, History, marks_of
from storage.report.plots import history_plot

NAMES = ["dynamic/eager", "static/eager"]
MARKS = marks_of(NAMES)
NIGHT = dt.date(2026, 3, 1)


def row(name: str = NAMES[0], **changes: Any) -> dict[str, Any]:
    return {
        "name": name, "deciding_speedup": 2.0, "deciding_speedup_low": 1.8, "deciding_speedup_high": 2.2,
        "night": NIGHT,
    } | changes  # fmt: skip


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("text")]


def test_events_are_numbered_and_changes_and_alerts_have_lines() -> None:
    nights = [NIGHT + dt.timedelta(days=each) for each in range(4)]
    rows = {NAMES[0]: [row(night=night) for night in nights]}
    events = (Event(nights[1], promoted=(NAMES[0],)), Event(nights[2], ("torch",)), Event(nights[3], alarms=("slow",)))
    svg = history_plot("t", History(rows, events), NAMES[:1], MARKS)
    assert {"1", "2", "3"} <= set(texts(svg))
    assert {str(night) for night in nights} <= set(texts(svg))
    assert ("#5b3a8c" in svg, "#a31515" in svg) == (True, True)


def test_one_night_has_no_picture() -> None:
    assert history_plot("t", History({NAMES[0]: [row()]}, ()), NAMES[:1], MARKS) == ""


def test_a_picture_is_named_described_and_the_same_every_time() -> None:
    speeds = {"deciding_speedup_low": 1.0011, "deciding_speedup": 1.0023, "deciding_speedup_high": 1.0034}
    rows = [row(night=NIGHT + dt.timedelta(days=each), **speeds) for each in range(2)]

    def draw() -> str:
        return history_plot("a & b", History({NAMES[0]: rows}, ()), NAMES[:1], MARKS)

    svg = draw()
    root = ElementTree.fromstring(svg)
    named = {node.attrib["id"]: node.text for node in root if "id" in node.attrib}
    assert root.attrib["role"] == "img"
    assert named[root.attrib["aria-labelledby"]] == "a & b"
    description = "2 nights from 2026-03-01 to 2026-03-02, 1 candidate; 0 events, listed next to the plot."
    assert named[root.attrib["aria-describedby"]] == description
    assert svg == draw()
    # Coordinates are rounded, but not the numbers on the axes.
    assert any(re.search(r"\d\.\d{3}", text) for text in texts(svg))
    attributes = [value for node in root.iter() for value in node.attrib.values()]
    assert not re.search(r"\d\.\d{3}", " ".join(attributes))
