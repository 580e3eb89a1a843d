from __future__ import annotations

import datetime as dt
import re
from typing import Any
from xml.etree import ElementTree

from storage.report.night import Event, History, marks_of
from storage.report.plots import drawing, history_plot

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
