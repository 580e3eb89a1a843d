"""How a night ends, as it is printed."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from flows.console import night_lines

LONG = "dynamic-int8-embedding8-with-a-name-that-is-as-long-as-a-name-may-be"


def row(recipe: str, became: str | None = None, why: str = "", **changes: Any) -> dict[str, Any]:
    """A row of ``outcomes``."""
    good = {
        "workload": "word-lm", "candidate": f"{recipe}/torchscript", "setting": "primary", "caches": "warm",
        "became": became, "why": why, "size_bytes": 5.966e6, "size_ratio": 1.7, "quality_metric": "loss",
        "quality": 5.734, "quality_difference": 0.00057, "deciding_latency_s": 1.02e-4, "deciding_speedup": 5.43,
        "deciding_speedup_low": 5.0, "deciding_speedup_high": 5.9, "resolution": 0.08, "is_baseline": False,
        "status": "failed" if became in ("failed", "skipped") else "ok", "method": "dynamic", "baseline": "float/eager",
        "best_float": "float/eager", "over_best_float": 5.43, "runtime_gain": 2.0, "int8_gain": 2.715,
        "over_current": None,
    }  # fmt: skip
    return good | changes


def faster(value: float, low: float, high: float) -> dict[str, float]:
    return {"deciding_speedup": value, "deciding_speedup_low": low, "deciding_speedup_high": high}


BASELINE = row(
    "float", "baseline", deciding_latency_s=5.5e-4, is_baseline=True, method="none", int8_gain=1.0, **faster(1, 1, 1)
)
FASTEST = row("dynamic-int8", "promote", "fastest of 2 passing candidates")


def printed(rows: list[dict[str, Any]], **night: Any) -> list[str]:
    """The lines of a night; `night` is the workload's row of ``nights``."""
    console = Console(file=StringIO(), width=80)
    for line in night_lines(rows, [{"workload": "word-lm"} | night]):
        console.print(line, highlight=False, soft_wrap=isinstance(line, Text))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_winner_is_marked_the_numbers_are_aligned_and_the_reason_follows() -> None:
    slower = row(
        "float16", "hold", "min_speedup requires 1.5, but the measured value is uncertain", **faster(1.2, 1.1, 1.3)
    )
    lines = printed([FASTEST, slower, BASELINE], outcome="promoted")
    assert lines == [
        "",
        "word-lm",
        "  baseline float/torchscript: 550 µs, 5.97 MB, loss 5.734, noise ±8.0%",
        "  candidate                 smaller      loss   int8     faster  decision",
        "★ dynamic-int8/torchscript    1.70×  +0.00057  2.71×  5.43× ±9%  promoted",
        "  float16/torchscript         1.70×  +0.00057  2.71×  1.20× ±9%  held",
        "→ dynamic-int8/torchscript promoted: fastest of 2 passing candidates",
        "  5.43× as fast as float/eager, the fastest float; over the baseline, 2.00× by",
        "  the runtime and 2.71× by int8, together 5.43×",
    ]


def test_without_a_winner_the_nearest_and_its_reason_are_shown() -> None:
    rows = [
        row("dynamic-int8", "reject", "min_size_ratio requires 3, but the measured value is 1.7"),
        row("float16", "hold", "min_speedup requires 1.5, but the measured value is uncertain (interval: 1.1 to 1.9)"),
        BASELINE,
    ]
    assert printed(rows, outcome="held", warning=None)[-3:] == [
        "→ no bundle is published; the closest candidate is float16/torchscript, held:",
        "  min_speedup requires 1.5, but the measured value is uncertain (interval: 1.1",
        "  to 1.9)",
    ]
    stays = "→ the current bundle stays; the closest candidate is"
    assert printed(rows, outcome="kept")[-3].startswith(f"{stays} float16/torchscript")
    passing = row("int8", "pass", "passes all 4 rules; it is 0.9 to 1.1 times as fast as the current bundle")
    [line, _] = printed([*rows, passing | {"over_current": 1.0}], outcome="kept")[-2:]
    assert line.startswith(f"{stays} int8/torchscript, passes:")
    # Without a comparison, the runtime of a passing candidate cannot be deployed.
    assert printed([*rows, passing], outcome="kept")[-3].startswith(f"{stays} float16/torchscript")


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_failure_is_said_once_however_many_candidates_it_cost_with_its_first_line(outcome: str) -> None:
    why = "checkpoint: cannot read [/data/x]: bad value\nand twenty lines more"
    lines = printed([row(recipe, outcome, why) for recipe in ("float", "int8", "half")])
    text = " ".join(line.removeprefix("✗").strip() for line in lines)
    assert text.count("cannot read [/data/x]: bad value") == 1
    assert "twenty" not in text
    assert f"float/torchscript, half/torchscript, int8/torchscript {outcome}: checkpoint:" in text
    assert 'nightquant query "from failures"' in text


def test_nothing_is_wider_than_80_columns_and_no_name_loses_its_end() -> None:
    reason = "max_quality_drop allows 0.5, but the measured value is uncertain (interval: 0.2 to 0.7); " * 3
    lines = printed([row(LONG, "hold", reason, quality_difference=-123.456), BASELINE])
    assert max(map(len, lines)) <= 80
    assert sum(line.count(LONG[-8:] + "/torchscript") for line in lines) >= 1


def test_the_heading_of_a_long_metric_wraps_between_words_and_leaves_room_for_names() -> None:
    metric = {"quality_metric": "difference_percent", "best_float": "float/openvino"}
    lines = printed([FASTEST | metric, BASELINE | metric])
    assert lines[4:7] == [
        "                              difference",
        "  candidate          smaller     percent   int8  over float     faster  decision",
        "★ dynamic-…chscript    1.70×    +0.00057  2.71×       5.43×  5.43× ±9%  promoted",
    ]


def test_a_night_that_is_decided_with_cold_caches_says_so() -> None:
    cold = {"caches": "cold"}
    base = BASELINE | cold | {"resolution": 0.2, "deciding_latency_s": 1.1e-3}
    fast = FASTEST | cold | faster(1.5, 1.2, 1.8)
    assert printed([fast, base])[2:6] == [
        "  baseline float/torchscript: 1.1 ms with cold caches, 5.97 MB, loss 5.734,",
        "  noise ±20%",
        "  candidate                 smaller      loss   int8        cold  decision",
        "★ dynamic-int8/torchscript    1.70×  +0.00057  2.71×  1.50× ±22%  promoted",
    ]
