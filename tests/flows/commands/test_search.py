"""What `nightquant search` prints; tests/flows/test_search_recipes.py runs it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

import pytest
from rich.console import Console

from flows.commands.search import _lines, _recipe_lines
from flows.request import SearchResult
from tasks.search.trial import Drop, Speed, Trial
from tasks.workload.recipe import Recipe
from tasks.workload.search import Goal
from tests.tasks.test_gate import workload

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
        total_s=90.0,
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


def test_a_search_without_finalists_says_what_to_do() -> None:
    failed = trial(1, "int8", size_bytes=1000, drop=DROP, outcome="failed", reason="loses too much")
    assert "  No recipe satisfies the bounds. Relax the bounds." in printed([failed])
    undecided = "  No recipe is known to satisfy the bounds yet. To go on, run the command again."
    assert undecided in printed([failed], undecided=3)
