"""The dead man's switch and the numbers for Prometheus."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flows.cli import main
from flows.overview import last_good_night, overdue
from tests.flows.commands.filled_store import AFTER, NIGHTS, RUNS, write
from tests.storage.results.rows import at, baseline, measurement, run_row

NightQuant = Callable[..., tuple[int, str]]
HOUR = dt.timedelta(hours=1)
ENDED = at(NIGHTS[1], 4)


def _samples(text: str) -> dict[tuple[str, str], float]:
    """By name and the label beside the store's."""
    return {
        (sample.name, next((value for label, value in sample.labels.items() if label != "store"), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_night_is_overdue_when_the_last_good_one_is_older_than_the_limit(two_nights: Path) -> None:
    assert overdue(str(two_nights), (), 26 * HOUR, ENDED + 26 * HOUR) == []
    (line,) = overdue(str(two_nights), (), 26 * HOUR, ENDED + 26.1 * HOUR)
    assert line == "no good night since 2026-03-02 04:00 UTC, 1 day ago"


@pytest.mark.parametrize("status", ["failed", "cancelled"])
@pytest.mark.slow
def test_a_night_that_was_not_good_does_not_count(status: str, tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1, runs=[run_row(RUNS[1], NIGHTS[1], status=status)])
    assert last_good_night(str(tmp_path)) == at(NIGHTS[0], 4)


@pytest.mark.slow
def test_a_workload_is_good_though_another_failed(tmp_path: Path) -> None:
    day, run = NIGHTS[1], RUNS[1]
    broken = {"workload": "resnet18", "status": "failed", "stage": "build", "error": "no", "speedup": None}
    write(tmp_path, 0)
    rows = [baseline(run, day), measurement(run, day), measurement(run, day, **broken)]
    write(tmp_path, 1, measurements=rows, runs=[run_row(run, day, status="failed", candidates_failed=1)])
    assert last_good_night(str(tmp_path), "word-lm") == ENDED
    assert last_good_night(str(tmp_path), "resnet18") is None
    assert overdue(str(tmp_path), ("word-lm", "resnet18"), 26 * HOUR, AFTER) == ["no good night of resnet18 yet"]


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


def test_a_store_without_a_night_is_overdue(tmp_path: Path, nightquant: NightQuant) -> None:
    assert nightquant("status", "--max-age", "26h", "--store", tmp_path / "none") == (1, "")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "arguments", [("--max-age", "26"), ("--max-age", "0h"), ("--max-age", "1 week"), ("--workload", "word-lm")]
)
@pytest.mark.slow
def test_a_wrong_request_is_refused(arguments: tuple[str, ...], two_nights: Path, nightquant: NightQuant) -> None:
    assert nightquant("status", *arguments, "--store", two_nights)[0] == 2


def test_prometheus_reads_the_last_night(tmp_path: Path, nightquant: NightQuant) -> None:
    day, run = NIGHTS[1], RUNS[1]
    write(tmp_path, 0)
    write(tmp_path, 1, runs=[run_row(run, day, status="failed", candidates_ok=7, candidates_failed=2)])
    code, text = nightquant("status", "--format", "prometheus", "--store", tmp_path)
    found = _samples(text)
    assert code == 0
    assert found[("nightquant_last_night_finished_timestamp_seconds", "")] == ENDED.timestamp()
    assert found[("nightquant_last_good_night_finished_timestamp_seconds", "")] == at(NIGHTS[0], 4).timestamp()
    assert found[("nightquant_last_night_age_seconds", "")] > 0
    assert {key[1]: value for key, value in found.items() if key[0] == "nightquant_last_night_status"} == {
        "completed": 0.0,
        "failed": 1.0,
        "cancelled": 0.0,
    }
    assert {key[1]: value for key, value in found.items() if key[0] == "nightquant_last_night_candidates"} == {
        "measured": 7.0,
        "failed": 2.0,
        "promoted": 0.0,
        "held": 0.0,
        "rejected": 0.0,
    }
    assert found[("nightquant_alarms", "")] == 0


def test_the_file_for_prometheus_is_replaced_in_one_step(
    two_nights: Path, tmp_path: Path, nightquant: NightQuant
) -> None:
    file = tmp_path / "nightquant.prom"
    file.write_text("old")
    before = file.stat().st_ino
    assert nightquant("status", "--prometheus", file, "--max-age", "1h", "--store", two_nights) == (1, "")
    assert file.stat().st_ino != before
    assert _samples(file.read_text())[("nightquant_last_night_status", "completed")] == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_store_without_a_night_has_no_samples(tmp_path: Path, nightquant: NightQuant) -> None:
    code, text = nightquant("status", "--format", "prometheus", "--store", tmp_path)
    assert (code, _samples(text)) == (0, {})
    assert "# TYPE nightquant_alarms gauge" in text


def test_a_file_that_cannot_be_written_is_one_message(two_nights: Path, tmp_path: Path, nightquant: NightQuant) -> None:
    assert nightquant("status", "--prometheus", tmp_path / "none" / "x.prom", "--store", two_nights) == (2, "")


@pytest.mark.slow
def test_metrics_without_the_client_are_refused_with_the_extra(
    two_nights: Path, tmp_path: Path, nightquant: NightQuant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.machine.installed_version", lambda distribution: None)
    for arguments in (["--format", "prometheus"], ["--prometheus", tmp_path / "x.prom"]):
        assert nightquant("status", *arguments, "--store", two_nights) == (2, "")
    assert nightquant("status", "--store", two_nights)[0] == 0
    assert list(tmp_path.iterdir()) == []
