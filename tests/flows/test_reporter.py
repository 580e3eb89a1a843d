"""What a person hears of a run while it goes on."""

from __future__ import annotations

import re
import time
from io import StringIO

import pytest
from rich.console import Console

from flows.reporter import _Bars, _Lines, elapsed, reporter_for

ERROR = "cannot read [/data/x]: bad value [type=missing, input_value=3] here"


def console(*, terminal: bool = False) -> Console:
    return Console(file=StringIO(), width=200, force_terminal=terminal)


def told(by: Console) -> list[str]:
    assert isinstance(by.file, StringIO)
    lines = by.file.getvalue().splitlines()
    assert all(re.match(r" *\d+:\d\d ", line) for line in lines)
    return [re.sub(r"^ *\d+:\d\d ", "", line) for line in lines]


@pytest.mark.parametrize("terminal", [True, False])
def test_brackets_in_an_error_are_shown_as_they_are(terminal: bool) -> None:
    out = console(terminal=terminal)
    with reporter_for(out) as reporter:
        reporter.finished("word-lm: evaluate", 1.0, ERROR)
    assert isinstance(out.file, StringIO)
    assert ERROR in out.file.getvalue()


def test_a_stage_of_which_nothing_was_heard_begins_before_it_ends() -> None:
    out = console()
    with reporter_for(out) as reporter:
        reporter.finished("word-lm: build", 0.1)
    assert told(out) == ["word-lm: build …", "word-lm: build: done in 0.1 s"]


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


def test_a_stage_that_begins_again_has_a_bar_again() -> None:
    bars = _Bars(console(terminal=True))
    bars.started("word-lm: fetch")
    bars.finished("word-lm: fetch", 1.0, "it is away")
    assert bars.progress.tasks == []
    bars.started("word-lm: fetch")
    bars.progressed("word-lm: fetch", 1, 4, "MB")
    assert [(bar.description, bar.completed, bar.total) for bar in bars.progress.tasks] == [("word-lm: fetch", 1, 4)]


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


def test_a_stage_that_says_nothing_is_heard_of_too_and_none_after_its_end() -> None:
    out = console()
    lines = _Lines(out, heartbeat_s=0.05)
    with lines.beating():
        lines.started("word-lm: fetch")
        deadline = time.monotonic() + 10
        while len(told(out)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        lines.finished("word-lm: fetch", 1.0)
        before = len(told(out))
        time.sleep(0.2)
    assert re.fullmatch(r"word-lm: fetch: running for \d:\d\d", told(out)[1])
    assert len(told(out)) == before


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3661, "1:01:01")])
@pytest.mark.slow
def test_time_is_written_as_a_clock_shows_it(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text


def test_the_time_that_is_left_is_reckoned_from_the_beginning_of_the_current_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("flows.reporter.time.monotonic", lambda: now)
    lines = _Lines(console())
    lines.started("net: check")
    lines.progressed("net: check", 9, 9, "candidates")
    for moment, done in ((600.0, 0), (610.0, 100)):  # ten minutes for the candidates, then ten samples a second
        now = moment
        lines.progressed("net: check", done, 1000, "samples")
    assert lines._running["net: check"].describe(now) == "100 of 1000 samples, about 1:30 left"
    for moment, done in ((700.0, 1000), (701.0, 50)):  # and the same samples again, at fifty a second
        now = moment
        lines.progressed("net: check", done, 1000, "samples")
    assert lines._running["net: check"].describe(now) == "50 of 1000 samples, about 0:19 left"
