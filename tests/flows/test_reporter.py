"""What a person hears of a run while it goes on."""

from __future__ import annotations

import re
import time
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from flows import reporter

ERROR = "cannot read [/data/x]: bad value [type=missing, input_value=3] here"


def console() -> Console:
    return Console(file=StringIO(), width=200)


def told(by: Console) -> list[str]:
    assert isinstance(by.file, StringIO)
    lines = by.file.getvalue().splitlines()
    assert all(re.match(r" *\d+:\d\d ", line) for line in lines)
    return [re.sub(r"^ *\d+:\d\d ", "", line) for line in lines]


@pytest.mark.slow
def test_a_stage_is_reported_when_it_begins_fails_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "_HEARTBEAT_S", 0.05)
    out = console()
    with reporter.reporter_for(out) as lines:
        lines.started("word-lm: train")
        lines.finished("word-lm: train", ERROR)
        lines.started("word-lm: train")
        lines.progressed("word-lm: train", 1.5, 4, "epochs, loss 5.91")
        deadline = time.monotonic() + 10
        while len(told(out)) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        lines.finished("word-lm: train")
    begun, failed, again, *beats, done = told(out)
    assert begun == again == "word-lm: train …"
    assert re.fullmatch(rf"word-lm: train: FAILED after \d+:\d\d: {re.escape(ERROR)}", failed)
    assert len(beats) >= 2
    assert all(re.fullmatch(r"word-lm: train: 1.5 of 4 epochs, loss 5.91, about \d+:\d\d left", beat) for beat in beats)
    assert re.fullmatch(r"word-lm: train: done in \d+\.\d s", done)


def test_a_stages_time_does_not_include_its_wait_for_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = 100.0, console()
    monkeypatch.setattr(reporter, "time", SimpleNamespace(monotonic=lambda: now))
    with reporter.reporter_for(out) as lines:
        now = 142.0
        lines.started("word-lm: build")
        now = 147.5
        lines.finished("word-lm: build")
        lines.finished("lstm-demo: build")  # nobody heard when it began
    assert told(out) == ["word-lm: build …", "word-lm: build: done in 5.5 s", "lstm-demo: build: done"]
