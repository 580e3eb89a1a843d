from __future__ import annotations

import datetime as dt
from pathlib import Path
from xml.etree import ElementTree

import pytest

from storage.report.night import (
    NIGHTS,
    History,
    history_of,
    marks_of,
    shown_of,
)
from storage.results.catalog import refresh
from storage.results.query import open_catalog
from storage.results.regressions import Regression
from tests.storage.report.nights import FIRST, LAST, REWRITTEN, SLOWER, UPGRADED
from tests.storage.results.rows import measurement, write_night

NAMES = [f"recipe-{index:02}/eager" for index in range(49)]


def test_forty_nine_candidates_look_different() -> None:
    assert len(set(marks_of(NAMES).values())) == 49


@pytest.mark.slow
def test_a_mark_in_text_is_complete_and_hidden_from_screen_readers() -> None:
    for mark in marks_of(NAMES).values():
        drawn = ElementTree.fromstring(mark.svg)
        assert drawn.attrib["aria-hidden"] == "true"
        assert drawn[0].attrib["fill"] == mark.colour


@pytest.mark.slow
def test_events_are_changes_promotions_and_alerts(filled: Path) -> None:
    def night(index: int) -> dt.date:
        return FIRST + dt.timedelta(days=index)

    found = Regression("word-lm", "dynamic", "onnxruntime", "slower", "speedup", since=night(SLOWER))
    better = Regression("word-lm", "dynamic", "eager", "improved", "speedup", since=night(3))
    with open_catalog(filled) as connection:
        history = history_of(connection, "word-lm", LAST, [found, better])
    events = {event.night: event for event in history.events}
    assert list(events) == [night(each) for each in (0, UPGRADED, UPGRADED + 2, REWRITTEN, SLOWER)]
    assert events[night(0)].promoted == ("dynamic/eager",)
    assert events[night(UPGRADED)].changes == ("torch 2.14.0 → 2.15.0",)
    assert events[night(UPGRADED + 2)].promoted == ("dynamic/torchscript",)
    assert "another recipe static" in events[night(REWRITTEN)].changes
    assert events[night(SLOWER)].alarms == ("dynamic/onnxruntime slower",)


@pytest.mark.slow
def test_another_machines_nights_and_old_ones_are_left_out(tmp_path: Path) -> None:
    nights = [FIRST + dt.timedelta(days=index) for index in range(NIGHTS + 3)]
    for index, night in enumerate(nights):
        machine = "other" if index == NIGHTS else "mine"
        run = f"run-{night}"
        write_night(tmp_path, night, [measurement(run, night, machine=machine)], run)
    refresh(tmp_path)
    with open_catalog(tmp_path) as connection:
        history = history_of(connection, "word-lm", nights[-1], [])
    assert history.nights == [night for night in nights[2:] if night != nights[NIGHTS]]


@pytest.mark.slow
def test_only_candidates_with_a_history_are_drawn_and_the_first_of_too_many() -> None:
    rows = {name: [{}] * count for name, count in (("a", 2), ("b", 1), ("c", 3), ("d", 2))}
    assert shown_of(History(rows, ()), ["d", "b", "gone", "a", "c"], most=2) == ["d", "a"]
