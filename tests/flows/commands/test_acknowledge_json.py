from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.results.catalog import refresh
from tests.storage.results.rows import baseline, measurement, write_night

NIGHTS = [dt.date(2026, 3, day) for day in range(1, 8)]


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A store whose last night is a quarter larger than those before."""
    for night in NIGHTS:
        run = f"run-{night}"
        size = 500 if night == NIGHTS[-1] else 400
        write_night(tmp_path, night, [baseline(run, night), measurement(run, night, size_bytes=size)])
    refresh(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_what_was_accepted_is_printed_as_json(grown: Path, nightquant: Callable[..., tuple[int, str]]) -> None:
    arguments = ["acknowledge", "--workload", "word-lm", "--reason", "a larger vocabulary", "--store", grown]
    code, shown = nightquant(*arguments, "--format", "json")
    assert code == 0
    assert [(each["metric"], each["tonight"], each["reference"]) for each in json.loads(shown)] == [
        ("size_bytes", 500, 400)
    ]
    assert nightquant(*arguments, "--format", "json") == (2, "")
