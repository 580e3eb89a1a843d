"""The dead man's switch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from flows.cli import main
from flows.commands.status import overdue
from tests.flows.commands.filled_store import AFTER, NIGHTS, RUNS, write
from tests.storage.results.rows import at, baseline, measurement, run_row

NightQuant = Callable[..., tuple[int, str]]
HOUR = dt.timedelta(hours=1)
ENDED = at(NIGHTS[1], 4)


def test_a_night_is_overdue_when_the_last_good_one_is_older_than_the_limit(two_nights: Path) -> None:
    assert overdue(str(two_nights), (), 26 * HOUR, ENDED + 26 * HOUR) == []
    (line,) = overdue(str(two_nights), (), 26 * HOUR, ENDED + 26.1 * HOUR)
    assert line == "no good night since 2026-03-02 04:00 UTC, 1 day ago"


@pytest.mark.slow
def test_a_night_that_was_not_good_does_not_count_but_for_workloads_that_were(tmp_path: Path) -> None:
    day, run = NIGHTS[1], RUNS[1]
    broken = {"workload": "resnet18", "status": "failed", "stage": "build", "error": "no", "speedup": None}
    write(tmp_path, 0)
    rows = [baseline(run, day), measurement(run, day), measurement(run, day, **broken)]
    write(tmp_path, 1, measurements=rows, runs=[run_row(run, day, status="failed", candidates_failed=1)])
    assert overdue(str(tmp_path), (), 2 * HOUR, AFTER) == ["no good night since 2026-03-01 04:00 UTC, 1 day ago"]
    assert overdue(str(tmp_path), ("word-lm", "resnet18"), 2 * HOUR, AFTER) == ["no good night of resnet18 yet"]


def test_a_workload_that_vanished_from_the_nights_is_overdue(tmp_path: Path) -> None:
    write(tmp_path, 0)
    rows = [each(RUNS[1], NIGHTS[1], workload="resnet18") for each in (baseline, measurement)]
    write(tmp_path, 1, measurements=rows)
    assert overdue(str(tmp_path), (), 2 * HOUR, AFTER) == []
    assert len(overdue(str(tmp_path), ("word-lm",), 2 * HOUR, AFTER)) == 1


def test_the_command_exits_1_with_one_message_or_0_in_silence(
    two_nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(age: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["status", "--max-age", age, "--store", str(two_nights)])
        out, err = capsys.readouterr()
        return ended.value.code, out, click.unstyle(err)

    assert run("99999d") == (0, "", "")
    code, out, err = run("90m")
    assert (code, out) == (1, "")
    assert err.startswith(f"nightquant: {two_nights}: no good night since 2026-03-02 04:00 UTC")
    assert err.count("\n") == 1
    assert overdue(str(two_nights / "none"), (), HOUR, AFTER) == ["no good night yet"]


@pytest.mark.parametrize("arguments", [("--max-age", "1 week"), ("--workload", "word-lm")])
@pytest.mark.slow
def test_a_wrong_request_is_refused(arguments: tuple[str, ...], two_nights: Path, nightquant: NightQuant) -> None:
    assert nightquant("status", *arguments, "--store", two_nights)[0] == 2
