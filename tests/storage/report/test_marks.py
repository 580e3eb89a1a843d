from __future__ import annotations

from xml.etree import ElementTree

import pytest

from storage.report.marks import marks_of

NAMES = [f"recipe-{index:02}/eager" for index in range(49)]


def test_forty_nine_candidates_look_different() -> None:
    assert len(set(marks_of(NAMES).values())) == 49


@pytest.mark.slow
def test_order_and_repetition_do_not_matter() -> None:
    assert marks_of([*NAMES, *reversed(NAMES)]) == marks_of(NAMES)


@pytest.mark.slow
def test_a_mark_in_text_is_whole_and_hidden_from_screen_readers() -> None:
    for mark in marks_of(NAMES).values():
        drawn = ElementTree.fromstring(mark.svg)
        assert drawn.attrib["aria-hidden"] == "true"
        assert drawn[0].attrib["fill"] == mark.colour
