from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.story import outlines, story
from storage.bundles import BundleStore
from storage.errors import BundleError, ConfigurationError
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


def test_each_workload_has_a_line(two_nights: Path, nightquant: NightQuant) -> None:
    code, shown = nightquant("show", "--store", two_nights, width=120)
    assert code == 0
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["word-lm", VERSIONS[0]]]
    assert "dynamic/eager" in shown


@pytest.mark.slow
def test_a_store_without_workloads_says_how_to_begin(tmp_path: Path, nightquant: NightQuant) -> None:
    code, shown = nightquant("show", "--store", tmp_path)
    assert (code, "nightquant nightly" in shown) == (0, True)
    assert nightquant("show", "--store", tmp_path, "--format", "json") == (0, "[]\n")


def test_a_story_tells_bundle_reason_rules_nights_and_recipe(two_nights: Path, nightquant: NightQuant) -> None:
    shown = nightquant("show", "word-lm", "--store", two_nights)[1]
    for part in (
        "dynamic/torchscript, 400 B", VERSIONS[0], f"promoted by run {RUNS[0]}", "fastest of 1",
        "speedup at least 1.05: 1.9, passed", "LSTM, Linear", "no study yet; run: nightquant sensitivity -",
    ):  # fmt: skip
        assert part in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("  2026") and "×" in line]
    assert rows == [
        [str(NIGHTS[1]), "2.00×", "±1%", "+0.1", "2.50×", "stays", VERSIONS[0]],
        [str(NIGHTS[0]), "2.00×", "±1%", "+0.1", "2.50×", "promoted", VERSIONS[0]],
    ]


@pytest.mark.slow
def test_both_speeds_are_told_and_the_one_that_decides_with_its_interval(
    tmp_path: Path, nightquant: NightQuant
) -> None:
    cold = {"cold_speedup": 7.1, "cold_speedup_low": 6.5, "cold_speedup_high": 7.8}
    day, run = NIGHTS[1], RUNS[1]
    for caches, speeds in (("warm", ["2.00×", "±1%", "7.10×"]), ("cold", ["2.00×", "7.10×", "±10%"])):
        store = tmp_path / caches
        write(store, 0)
        write(store, 1, measurements=[baseline(run, day), measurement(run, day, caches=caches, **cold)])
        shown = nightquant("show", "word-lm", "--store", store)[1]
        rows = [line.split() for line in shown.splitlines() if line.startswith("  2026") and "×" in line]
        assert rows[0][1:4] == speeds
        assert rows[1][1:4] == ["2.00×", "±1%", "–"]
        assert max(map(len, shown.splitlines())) <= 80


def test_a_float_baseline_is_told_with_its_warnings(tmp_path: Path, nightquant: NightQuant) -> None:
    doubted = {"int8_time_share": 0.0, "doubts": '["83% of the time is a::slow: compare"]'}
    write(tmp_path, 1, measurements=[baseline(RUNS[1], NIGHTS[1], **doubted), measurement(RUNS[1], NIGHTS[1])])
    assert "  float/eager: 83% of the time is a::slow: compare" in nightquant("show", "word-lm", "--store", tmp_path)[1]


def test_the_last_nights_alone_are_told(two_nights: Path) -> None:
    assert [row["night"] for row in story(str(two_nights), "word-lm", 1).nights] == [NIGHTS[1]]


def test_a_night_on_which_the_incumbent_was_measured_by_its_own_files_shows_those(tmp_path: Path) -> None:
    write(tmp_path, 0)
    day, run = NIGHTS[1], RUNS[1]
    stays = {"incumbent_version": VERSIONS[0], "incumbent_stays": True, "incumbent_reason": "it passes"}
    rows = [
        baseline(run, day),
        measurement(run, day, recipe="other", speedup=9.0),
        measurement(run, day, recipe="dynamic", runtime="torchscript", setting="incumbent", speedup=3.0),
    ]
    write(tmp_path, 1, measurements=rows, promotions=[promotion(run, day, recipe="other", decision="pass", **stays)])
    newest = story(str(tmp_path), "word-lm", 9).nights[0]
    assert (newest["recipe"], newest["speedup"], newest["bundle_version"]) == ("dynamic", 3.0, VERSIONS[0])
    assert (newest["incumbent_stays"], newest["reason"]) == (True, "it passes")


def test_a_night_on_which_nothing_passed_shows_the_nearest(tmp_path: Path) -> None:
    day, run = NIGHTS[0], RUNS[0]
    rows = [baseline(run, day), *(measurement(run, day, recipe=name) for name in ("a", "b"))]
    decisions = [
        promotion(run, day, recipe=name, decision=decision, reason=name)
        for name, decision in (("a", "reject"), ("b", "hold"))
    ]
    write(tmp_path, 0, measurements=rows, promotions=decisions)
    (only,) = story(str(tmp_path), "word-lm", 9).nights
    assert (only["recipe"], only["decision"], only["bundle_version"]) == ("b", "hold", None)
    assert [(each.workload, each.version) for each in outlines(str(tmp_path))] == [("word-lm", None)]


def test_the_most_sensitive_layers_of_a_study_are_shown(filled: Path, nightquant: NightQuant) -> None:
    layers = [layer(f"m{rank}", rank) for rank in range(1, 8)] + [layer("unranked", None)]
    ResultsStore(filled).append("layers", layers, RUNS[1], at(NIGHTS[1]))
    refresh(filled)
    shown = nightquant("show", "word-lm", "--store", filled)[1]
    assert [name for name in ("m1", "m5", "m6", "unranked") if name in shown] == ["m1", "m5"]
    assert "8 of 8 modules quantized" in shown
    assert len(json.loads(nightquant("show", "word-lm", "--store", filled, "--format", "json")[1])["layers"]) == 7


@pytest.mark.slow
def test_after_a_switch_by_hand_both_reasons_are_told(filled: Path, nightquant: NightQuant) -> None:
    BundleStore(filled).promote_by_hand("word-lm", VERSIONS[1], by="someone", reason="known to work")
    shown = nightquant("show", "word-lm", "--store", filled)[1]
    for part in (VERSIONS[1], "promoted by hand by someone", "known to work", "fastest of 1"):
        assert part in shown


@pytest.mark.slow
def test_what_was_tampered_with_is_not_shown(filled: Path) -> None:
    path = BundleStore(filled).local_folder("word-lm", VERSIONS[0]) / "manifest.json"
    path.chmod(0o644)
    path.write_text("{}")
    with pytest.raises(BundleError):
        story(str(filled), "word-lm", 9)


def test_an_unknown_workload_is_refused_with_those_that_there_are(two_nights: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Workloads in the store: word-lm"):
        story(str(two_nights), "resnet18", 9)
    hand_over(tmp_path, 0)
    with pytest.raises(ConfigurationError, match="Workloads in the store: word-lm"):
        story(str(tmp_path), "resnet18", 9)
    assert story(str(tmp_path), "word-lm", 9).nights == ()


@pytest.mark.slow
def test_what_could_not_be_looked_at_is_said_to_be_unknown(tmp_path: Path, nightquant: NightQuant) -> None:
    day, run = NIGHTS[1], RUNS[1]
    killed = {"int8_time_share": "The proof process was killed by SIGSEGV.\nits last line"}
    rows = [baseline(run, day, int8_time_share=0.0), measurement(run, day, unknown=killed)]
    write(tmp_path, 1, measurements=rows)
    noisy = layer("decoder", 1) | {"sqnr_db": None, "unknown": {"sqnr_db": "nan is not a finite number"}}
    ResultsStore(tmp_path).append("layers", [noisy], run, at(day))
    refresh(tmp_path)
    code, shown = nightquant("show", "word-lm", "--store", tmp_path)
    assert code == 0
    assert "dynamic/eager: unknown: The proof process was killed by SIGSEGV." in shown
    assert "its last line" not in shown
    [layers] = [line.split() for line in shown.splitlines() if "decoder" in line]
    assert layers == ["decoder", "Linear", "–"]
