from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from flows.cli import main
from flows.commands.status import Overview, overdue, overview
from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from tests.flows.commands.filled_store import AFTER, NIGHTS, RUNS, VERSIONS, write
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row

NightQuant = Callable[..., tuple[int, str]]


def kinds(found: Overview) -> list[str]:
    return [concern.kind for concern in found.concerns]


def test_without_a_subcommand_the_state_is_shown(
    two_nights: Path, nightquant: NightQuant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTQUANT_STORE", str(two_nights))
    code, shown = nightquant()
    assert code == 0
    assert shown == nightquant("status")[1]
    for part in ("Last night", str(NIGHTS[1]), "completed", "1 kept", "word-lm", VERSIONS[0], "nightquant report"):
        assert part in shown


def test_nothing_is_wider_than_the_terminal_or_cut(
    two_nights: Path, nightquant: NightQuant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTQUANT_STORE", str(two_nights))
    for arguments in ([], ["show", "word-lm"], ["compare", *RUNS]):
        shown = nightquant(*arguments)[1]
        assert max(map(len, shown.splitlines())) <= 80
        assert "…" not in shown


def test_a_night_in_good_order_needs_no_attention_for_a_day(two_nights: Path) -> None:
    found = overview(str(two_nights), AFTER)
    assert found.concerns == ()
    assert found.last_run is not None
    assert [found.last_run[name] for name in ("run_id", "kept", "promoted")] == [RUNS[1], 1, 0]
    assert [(each["workload"], each["version"]) for each in found.current] == [("word-lm", VERSIONS[0])]
    assert kinds(overview(str(two_nights), AFTER + dt.timedelta(hours=23))) == []
    late = overview(str(two_nights), AFTER + dt.timedelta(hours=49))
    assert kinds(late) == ["overdue"]
    assert "2 days ago" in late.concerns[0].text


@pytest.mark.slow
def test_failures_are_reported_once_with_their_first_line(tmp_path: Path) -> None:
    day, run = NIGHTS[0], RUNS[0]
    failed = {"status": "failed", "stage": "benchmark", "error": "no memory\nand more", "speedup": None}
    rows = [baseline(run, day), *(measurement(run, day, runtime=name, **failed) for name in ("eager", "torchscript"))]
    write(tmp_path, 0, measurements=rows, runs=[run_row(run, day, status="failed", candidates_failed=2)])
    found = overview(str(tmp_path), AFTER - dt.timedelta(days=1))
    assert [concern.text for concern in found.concerns if concern.kind == "failure"] == [
        "word-lm: dynamic/eager, dynamic/torchscript failed in benchmark: no memory"
    ]


def test_a_current_bundle_that_no_longer_passes_is_reported(tmp_path: Path) -> None:
    reason = "no candidate passes that could replace it, although it was not measured"
    row = promotion(
        RUNS[0], NIGHTS[0], decision="reject",
        current_version=VERSIONS[0], current_stays=True, current_reason=reason,
    )  # fmt: skip
    write(tmp_path, 0, promotions=[row])
    assert kinds(overview(str(tmp_path), AFTER - dt.timedelta(days=1))) == ["current"]


def test_regressions_are_alerts_until_they_are_acknowledged(filled: Path) -> None:
    finding = {
        "run_id": RUNS[1], "night": NIGHTS[1], "workload": "word-lm", "recipe": "dynamic", "runtime": "eager",
        "metric": "speedup", "kind": "slower", "tonight": 1.0, "reference": 2.0, "change": -0.5, "nights": 9,
    }  # fmt: skip
    store = ResultsStore(filled)
    store.append("findings", [finding], RUNS[1], at(NIGHTS[1]))
    refresh(filled)
    found = overview(str(filled), AFTER)
    assert found.last_run is not None
    assert found.last_run["alarms"] == 1
    assert [concern.text for concern in found.concerns] == ["word-lm dynamic/eager slower: speedup 1, was 2, -50.0%"]
    accepted = {name: finding[name] for name in ("night", "workload", "recipe", "runtime", "metric")}
    accepted |= {"run_id": "acknowledged", "reason": "x", "acknowledged_by": "y", "acknowledged_at": AFTER}
    store.append("acknowledgements", [accepted], "acknowledged", AFTER)
    refresh(filled)
    assert overview(str(filled), AFTER).concerns == ()


@pytest.mark.slow
def test_a_store_that_is_absent_or_empty_says_how_to_begin_and_stays_so(tmp_path: Path, nightquant: NightQuant) -> None:
    code, shown = nightquant("status", "--store", tmp_path / "none")
    assert code == 0
    assert "contains no results yet" in shown
    assert f"nightquant nightly --profile quick --store {tmp_path / 'none'}" in shown
    assert not (tmp_path / "none").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--help"], ["pyarrow", "duckdb", "pydantic"]),
        (["status"], ["jsonschema"]),
        (["query", "from leaderboard"], ["httpx"]),
    ],
)
@pytest.mark.slow
def test_a_command_that_only_reads_imports_nothing_heavy(
    arguments: list[str], more: list[str], two_nights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTQUANT_STORE", str(two_nights))
    code = (
        f"import sys\nfrom flows.cli import main\ntry:\n    main({arguments!r})\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        f"heavy = {{'torch', 'prefect', 'scipy', 'matplotlib', *{more!r}}} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


HOUR = dt.timedelta(hours=1)
ENDED = at(NIGHTS[1], 4)


def test_a_night_is_overdue_when_the_last_good_one_is_older_than_the_limit(two_nights: Path) -> None:
    assert overdue(str(two_nights), 26 * HOUR, ENDED + 26 * HOUR) == ""
    late = overdue(str(two_nights), 26 * HOUR, ENDED + 26.1 * HOUR)
    assert late == "no good night since 2026-03-02 04:00 UTC, 1 day ago"


def test_a_night_that_was_not_good_does_not_count(tmp_path: Path) -> None:
    day, run = NIGHTS[1], RUNS[1]
    write(tmp_path, 0)
    rows = [baseline(run, day), measurement(run, day)]
    write(tmp_path, 1, measurements=rows, runs=[run_row(run, day, status="failed", candidates_failed=1)])
    assert overdue(str(tmp_path), 2 * HOUR, AFTER) == "no good night since 2026-03-01 04:00 UTC, 1 day ago"


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
    assert overdue(str(two_nights / "none"), HOUR, AFTER) == "no good night yet"
