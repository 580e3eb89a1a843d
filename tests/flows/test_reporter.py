"""What a person hears of a run while it goes on."""

from __future__ import annotations

import re
import time
from io import StringIO

import pytest
from rich.console import Console

from flows.reporter import _Lines, reporter_for

ERROR = "cannot read [/data/x]: bad value [type=missing, input_value=3] here"


def console() -> Console:
    return Console(file=StringIO(), width=200)


def told(by: Console) -> list[str]:
    assert isinstance(by.file, StringIO)
    lines = by.file.getvalue().splitlines()
    assert all(re.match(r" *\d+:\d\d ", line) for line in lines)
    return [re.sub(r"^ *\d+:\d\d ", "", line) for line in lines]


def test_brackets_in_an_error_are_shown_as_they_are() -> None:
    out = console()
    with reporter_for(out) as reporter:
        reporter.finished("word-lm: evaluate", 1.0, ERROR)
    assert isinstance(out.file, StringIO)
    assert ERROR in out.file.getvalue()


@pytest.mark.slow
def test_a_stage_that_begins_again_is_heard_of_again() -> None:
    out = console()
    lines = _Lines(out, heartbeat_s=0.05)
    with lines.beating():
        lines.started("word-lm: fetch")
        lines.finished("word-lm: fetch", 1.0, "it is away")
        lines.started("word-lm: fetch")
        lines.progressed("word-lm: fetch", 1, 4, "MB")
        deadline = time.monotonic() + 10
        while len(told(out)) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert told(out)[:3] == ["word-lm: fetch …", "word-lm: fetch: FAILED after 0:01: it is away", "word-lm: fetch …"]
    assert told(out)[3].startswith("word-lm: fetch: 1 of 4 MB")


@pytest.mark.slow
def test_a_long_stage_is_heard_of_again_and_again_with_what_it_last_said() -> None:
    out = console()
    lines = _Lines(out, heartbeat_s=0.05)
    with lines.beating():
        lines.started("word-lm: train")
        lines.progressed("word-lm: train", 1.5, 4, "epochs, loss 5.91")
        deadline = time.monotonic() + 10
        while len(told(out)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        lines.finished("word-lm: train", 2.0)
    beats = told(out)[1:-1]
    assert len(beats) >= 2
    assert all(re.fullmatch(r"word-lm: train: 1.5 of 4 epochs, loss 5.91, about \d+:\d\d left", beat) for beat in beats)
