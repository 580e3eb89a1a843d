from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.commands.show import workload_history
from storage.errors import ConfigurationError
from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from tests.flows.commands.filled_store import NIGHTS, RUNS, VERSIONS, hand_over, write
from tests.storage.results.rows import at, baseline, measurement, promotion

NightQuant = Callable[..., tuple[int, str]]


def layer(module: str, rank: int | None) -> dict[str, object]:
    return {
        "run_id": RUNS[1], "night": NIGHTS[1], "workload": "word-lm", "recipe": "dynamic", "module": module,
        "type": "Linear", "parameters": 9, "quantized": True, "sqnr_db": 10.0 * rank if rank else None,
        "sensitivity_rank": rank,
    }  # fmt: skip


def test_the_history_shows_bundle_reason_rules_and_nights(two_nights: Path, nightquant: NightQuant) -> None:
    shown = nightquant("show", "word-lm", "--store", two_nights)[1]
    for part in (
        "dynamic/torchscript, 400 B", VERSIONS[0], f"promote by run {RUNS[0]}", "fastest of 1",
        "speedup at least 1.05: 1.9, passed", "no study yet; run: nightquant sensitivity -",
    ):  # fmt: skip
        assert part in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("  2026") and "×" in line]
    assert rows == [
        [str(NIGHTS[1]), "2.00×", "±1%", "+0.1", "2.50×", "stays", VERSIONS[0]],
        [str(NIGHTS[0]), "2.00×", "±1%", "+0.1", "2.50×", "promoted", VERSIONS[0]],
    ]


def test_a_night_on_which_the_current_bundle_was_measured_by_its_own_files_shows_those(tmp_path: Path) -> None:
    write(tmp_path, 0)
    day, run = NIGHTS[1], RUNS[1]
    stays = {"current_version": VERSIONS[0], "current_stays": True, "current_reason": "it passes"}
    rows = [
        baseline(run, day),
        measurement(run, day, recipe="other", speedup=9.0),
        measurement(run, day, recipe="dynamic", runtime="torchscript", setting="current", speedup=3.0),
    ]
    write(tmp_path, 1, measurements=rows, promotions=[promotion(run, day, recipe="other", decision="pass", **stays)])
    newest = workload_history(str(tmp_path), "word-lm", 9)["nights"][0]
    assert (newest["recipe"], newest["speedup"], newest["bundle_version"]) == ("dynamic", 3.0, VERSIONS[0])
    assert (newest["current_stays"], newest["reason"]) == (True, "it passes")


def test_the_most_sensitive_layers_of_a_study_are_shown(filled: Path, nightquant: NightQuant) -> None:
    layers = [layer(f"m{rank}", rank) for rank in range(1, 8)] + [layer("unranked", None)]
    ResultsStore(filled).append("layers", layers, RUNS[1], at(NIGHTS[1]))
    refresh(filled)
    shown = nightquant("show", "word-lm", "--store", filled)[1]
    assert [name for name in ("m1", "m5", "m6", "unranked") if name in shown] == ["m1", "m5"]
    assert "8 of 8 modules quantized" in shown


def test_an_unknown_workload_is_refused_with_a_list_of_workloads(two_nights: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Workloads in the store: word-lm"):
        workload_history(str(two_nights), "resnet18", 9)
    hand_over(tmp_path, 0)
    with pytest.raises(ConfigurationError, match="Workloads in the store: word-lm"):
        workload_history(str(tmp_path), "resnet18", 9)
    assert workload_history(str(tmp_path), "word-lm", 9)["nights"] == []
