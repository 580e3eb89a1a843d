"""What `nightquant search` prints (tests/flows/test_search_recipes.py runs it), ``generate`` and ``sensitivity``."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from flows.commands import toml
from flows.commands.search import _lines, _recipe_lines, generate, sensitivity
from flows.request import SearchResult
from storage.errors import ConfigurationError
from tasks.search.trial import Drop, Speed, Trial
from tasks.workload.gate import Goal
from tasks.workload.recipe import Recipe
from tests.tasks.decide.test_gate import workload
from tests.tasks.text_workloads import text_document, write_corpus

RECIPES = [
    {"method": "dynamic", "modules": ["LSTM", "GRU"], "dtype": "float16"},
    {"method": "static", "weights": "per-tensor", "exclude": ["layer1.0.conv1", 'odd"name']},
]


@pytest.mark.parametrize("keys", RECIPES, ids=lambda keys: str(keys["method"]))
def test_a_printed_recipe_can_be_copied_into_a_workload_file(keys: dict[str, object]) -> None:
    recipe = Recipe.model_validate({"name": "found", "runtimes": ["eager"], **keys})
    (read,) = tomllib.loads("\n".join(_recipe_lines(recipe)))["recipe"]
    assert Recipe.model_validate(read) == recipe


def trial(number: int, name: str, **values: object) -> Trial:
    recipe = Recipe.model_validate({"name": name, "method": "dynamic"})
    return Trial.model_validate(
        {"number": number, "recipe": recipe, "runtime": "torchscript", "origin": "space", **values}
    )


def printed(trials: Sequence[Trial], undecided: int = 0) -> list[str]:
    result = SearchResult(
        workload="demo",
        goal=Goal("fastest", 0.5, "absolute"),
        split="valid",
        fingerprint="f" * 64,
        trials=tuple(trials),
        finalists=tuple(trial for trial in trials if trial.outcome == "chosen"),
        budget_s=100.0,
        spent_s=30.0,
        undecided=undecided,
        ended="no other trial can win",
    )
    console = Console(width=80)
    with console.capture() as capture:
        for line in _lines(result, workload(max_quality_drop=0.5)):
            console.print(line, highlight=False)
    return [line.rstrip() for line in capture.get().splitlines()]


DROP = Drop(value=-0.0, low=-0.1, high=0.12345, samples=512)
SPEED = Speed(value=2.0, low=1.9, high=2.1, launches=2)


def test_trials_are_shown_within_80_columns_with_each_kind_of_reason_once() -> None:
    chosen = trial(1, "kept-float-" + 40 * "x", size_bytes=1000, drop=DROP, speed=SPEED, outcome="chosen")
    large = [
        trial(n, f"large{n}", size_bytes=n, outcome="dropped", reason=f"{n},000 bytes are more than 1,000")
        for n in range(2, 7)
    ]
    broken = trial(7, "broken", outcome="failed", reason="build: it breaks")
    lines = printed([chosen, *large, broken])
    assert max(map(len, lines)) <= 80
    assert lines[2].endswith("…xxxxx/torchscript  1 kB     0     0.12  2.00× ±5%  chosen")
    reasons = " ".join(" ".join(lines).split())
    assert "– large2/torchscript, large3/torchscript, large4/torchscript and 2 more: for example" in reasons
    assert "– broken/torchscript: build: it breaks" in reasons
    assert "→ demo: the search spent 30 s of 100 s on 6 trials and chose 1 finalist; no" in lines
    assert 'runtimes = ["torchscript"]' in lines


def test_a_search_without_finalists_prints_advice() -> None:
    failed = trial(1, "int8", size_bytes=1000, drop=DROP, outcome="failed", reason="loses too much")
    assert "  No recipe satisfies the bounds. Relax the bounds." in printed([failed])
    undecided = "  No recipe is known to satisfy the bounds yet. To go on, run the command again."
    assert undecided in printed([failed], undecided=3)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("generate")
    document = text_document(write_corpus(folder / "corpus"))
    lines = [f"{key} = {toml(value)}" for key, value in document.items()]
    (folder / "tiny.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder


def invoke(place: Path, *arguments: str) -> Result:
    base = ["--workload", str(place / "tiny.toml"), "--store", str(place / "store"), "--words", "20"]
    return CliRunner().invoke(generate, [*base, *arguments], catch_exceptions=True)


def test_text_streams_to_the_terminal_and_a_seed_repeats_it(place: Path) -> None:
    first, second = invoke(place, "--seed", "3"), invoke(place, "--seed", "3")
    assert first.exit_code == 0, first.exception
    assert 10 <= len(first.stdout.split()) <= 20
    assert first.stdout == second.stdout
    assert invoke(place, "--seed", "3", "--recipe", "dynamic-int8").stdout.split()
    assert invoke(place, "--seed", "4").stdout != first.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-2"], "above 0"),
        (["--recipe", "no-such"], "has no recipe"),
    ],
)
@pytest.mark.slow
def test_a_model_that_cannot_be_sampled_is_refused(place: Path, arguments: list[str], message: str) -> None:
    result = invoke(place, *arguments)
    assert isinstance(result.exception, ConfigurationError)
    assert message in str(result.exception)


@pytest.mark.slow
def test_layers_are_ranked_and_only_for_recipes_that_quantize(place: Path) -> None:
    base = ["--workload", str(place / "tiny.toml"), "--store", str(place / "store")]
    result = CliRunner().invoke(sensitivity, base, catch_exceptions=False)
    assert result.exit_code == 0
    for part in ("SQNR (dB)", "decoder", "rnn"):
        assert part in result.stdout
    with pytest.raises(ConfigurationError, match=r'no quantizing recipe "float".*Use one of these: dynamic-int8'):
        CliRunner().invoke(sensitivity, [*base, "--recipe", "float"], catch_exceptions=False)
