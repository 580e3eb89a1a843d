"""How a night ends, as it is printed."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from flows.console import night_lines, shown_path

LONG = "dynamic-int8-embedding8-with-a-name-that-is-as-long-as-a-name-may-be"


def row(recipe: str, runtime: str = "torchscript", **changes: Any) -> dict[str, Any]:
    good = {
        "workload": "word-lm", "recipe": recipe, "runtime": runtime, "setting": "primary", "is_baseline": False,
        "status": "ok", "size_bytes": 5.966e6, "size_ratio": 1.7, "quality_metric": "loss", "quality": 5.734,
        "quality_difference": 0.00057, "latency_s": 1.02e-4, "speedup": 5.43, "speedup_low": 5.0, "speedup_high": 5.9,
        "aa_low": 0.95, "aa_high": 1.08,
    }  # fmt: skip
    return good | changes


def promotion(recipe: str, decision: str, reason: str, **changes: Any) -> dict[str, Any]:
    key = {"workload": "word-lm", "recipe": recipe, "runtime": "torchscript"}
    return key | {"decision": decision, "reason": reason} | changes


BASELINE = row("float", is_baseline=True, speedup=1.0, speedup_low=1.0, speedup_high=1.0, latency_s=5.5e-4)
FASTEST = promotion("dynamic-int8", "promote", "fastest of 2 passing candidates")


def printed(rows: list[dict[str, Any]], promotions: list[dict[str, Any]], bundles: tuple[str, ...] = ()) -> list[str]:
    console = Console(file=StringIO(), width=80)
    for line in night_lines(rows, promotions, bundles):
        console.print(line, highlight=False, soft_wrap=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_what_was_skipped_is_told_once_with_its_reason():
    missing = {"status": "skipped", "stage": "build", "error": "The runtime needs a package.", "speedup": None}
    lines = printed([row("float", is_baseline=True), row("int8", **missing), row("half", **missing)], [])
    assert [line for line in lines if "skipped" in line] == [
        "– half/torchscript, int8/torchscript skipped: build: The runtime needs a"
    ]
    assert not [line for line in lines if "int8/torchscript  " in line]


def test_the_winner_is_marked_the_numbers_are_aligned_and_the_reason_follows() -> None:
    slower = row("float16", speedup=1.2, speedup_low=1.1, speedup_high=1.3)
    held = promotion("float16", "hold", "min_speedup asks for 1.5, saw 1.1")
    lines = printed([slower, row("dynamic-int8"), BASELINE], [FASTEST, held], ("word-lm/2026-11-21-a",))
    assert lines == [
        "",
        "word-lm",
        "  baseline float/torchscript: 550 µs, 5.97 MB, loss 5.734, resolution ±8%",
        "  candidate                 smaller      loss     faster  decision",
        "★ dynamic-int8/torchscript    1.70×  +0.00057  5.43× ±9%  promoted",
        "  float16/torchscript         1.70×  +0.00057  1.20× ±9%  held",
        "→ dynamic-int8/torchscript promoted: fastest of 2 passing candidates",
    ]


@pytest.mark.slow
def test_without_a_winner_the_nearest_and_its_reason_are_told() -> None:
    promotions = [
        promotion("dynamic-int8", "reject", "min_size_ratio asks for 3, saw 1.7"),
        promotion("float16", "hold", "min_speedup asks for 1.5, saw 1.1 (from 1.1 to 1.9)"),
    ]
    rows = [BASELINE, row("dynamic-int8"), row("float16", speedup=1.2)]
    assert printed(rows, promotions)[-2:] == [
        "→ nothing is handed over; nearest is float16/torchscript, held: min_speedup asks",
        "  for 1.5, saw 1.1 (from 1.1 to 1.9)",
    ]
    assert "→ the current bundle stays; nearest is" in printed(rows, promotions, ("word-lm/2026-11-20-a",))[-2]


def test_an_unknown_current_bundle_is_not_called_none() -> None:
    why = "passes all 2 rules; the current bundle is unknown: current.json is damaged"
    unknown = {"incumbent_reason": "it is unknown (current.json is damaged), so nothing is promoted"}
    held = promotion("dynamic-int8", "hold", why, incumbent_stays=None, **unknown)
    lines = printed([BASELINE, row("dynamic-int8")], [held])
    assert lines[-2].startswith("→ the current bundle is unknown; nearest is dynamic-int8/torchscript, held:")


def test_a_bundle_that_stays_is_marked_as_such() -> None:
    stays = promotion("dynamic-int8", "promote", "it passes", incumbent_stays=True)
    lines = printed([BASELINE, row("dynamic-int8")], [stays])
    assert lines[-2].startswith("★ dynamic-int8/torchscript")
    assert lines[-2].endswith("  stays")
    assert lines[-1] == "→ dynamic-int8/torchscript stays: it passes"


def test_a_failure_is_told_once_however_many_candidates_it_cost_with_its_first_line() -> None:
    error = "cannot read [/data/x]: bad value\nand twenty lines more"
    failed = {"status": "failed", "stage": "checkpoint", "error": error, "speedup": None, "latency_s": None}
    lines = printed([row("float", is_baseline=True, **failed), row("int8", **failed), row("half", **failed)], [])
    text = " ".join(line.removeprefix("✗").strip() for line in lines)
    assert text.count("cannot read [/data/x]: bad value") == 1
    assert "twenty" not in text
    assert "float/torchscript, half/torchscript, int8/torchscript failed: checkpoint:" in text
    assert 'nightquant query "from failures"' in text


@pytest.mark.parametrize("recipe", [LONG, "a"])
def test_nothing_is_wider_than_80_columns_and_no_name_loses_its_end(recipe: str) -> None:
    reason = "max_quality_drop asks for 0.5, saw 0.7 (top1, higher is better; from 0.2 to 0.7); " * 3
    lines = printed([BASELINE, row(recipe, quality_difference=-123.456)], [promotion(recipe, "hold", reason)])
    assert max(map(len, lines)) <= 80
    assert sum(line.count(recipe[-8:] + "/torchscript") for line in lines) >= 1


def test_other_settings_are_no_candidates() -> None:
    rows = [BASELINE, row("dynamic-int8"), row("dynamic-int8", setting="incumbent"), row("float", setting="a/a")]
    assert sum("dynamic-int8/" in line for line in printed(rows, [])) == 1


def test_paths_in_the_working_folder_are_written_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(f"{tmp_path}/nightquant-store") == "nightquant-store"
    assert shown_path("s3://bucket/store") == "s3://bucket/store"


def test_a_night_that_is_decided_with_cold_caches_shows_what_decided() -> None:
    cold = {"caches": "cold", "cold_aa_low": 0.9, "cold_aa_high": 1.2, "cold_latency_s": 1.1e-3}
    base = BASELINE | cold | {"cold_speedup": 1.0, "cold_speedup_low": 1.0, "cold_speedup_high": 1.0}
    fast = row("dynamic-int8", **cold, cold_speedup=1.5, cold_speedup_low=1.2, cold_speedup_high=1.8)
    slow = row("float16", **cold, cold_speedup=1.2, cold_speedup_low=1.1, cold_speedup_high=1.3, speedup=9.0)
    assert printed([slow, fast, base], [FASTEST])[2:6] == [
        "  baseline float/torchscript: 1.1 ms with cold caches, 5.97 MB, loss 5.734,",
        "  resolution ±20%",
        "  candidate                 smaller      loss        cold  decision",
        "★ dynamic-int8/torchscript    1.70×  +0.00057  1.50× ±22%  promoted",
    ]
