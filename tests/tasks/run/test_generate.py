"""Sampling text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flows.request import BUILT_IN
from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.domains.language_model import WordLanguageModelSpec
from tasks.run.generate import generate, sample_words, word_weights
from tasks.values.job import Workspace
from tasks.workload import Workload, find_workloads
from tests.tasks.text_workloads import text_workload, write_corpus

VOCABULARY = ["zero", "one", "two", "<eos>"]
SPEC = WordLanguageModelSpec(kind="word-lm", hidden_size=2, layers=1)


class Counting(nn.Module):
    """Nearly sure of the word after the last one."""

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = nn.functional.one_hot((tokens + 1) % len(VOCABULARY), len(VOCABULARY)).float() * 50
        return logits, h + 1, c


def sampled(seed: int = 0, words: int = 12, temperature: float = 1.0) -> list[str]:
    return list(sample_words(Counting(), VOCABULARY, SPEC, words=words, temperature=temperature, seed=seed))


@pytest.mark.slow
def test_each_word_is_fed_back() -> None:
    words = sampled()
    start = VOCABULARY.index(words[0])
    assert words == [VOCABULARY[(start + step) % 4] for step in range(12)]


def test_equal_seeds_give_equal_text_and_a_high_temperature_other_text() -> None:
    assert sampled(seed=5, temperature=100) == sampled(seed=5, temperature=100)
    assert sampled(seed=5, temperature=100, words=40) != sampled(seed=5, words=40)
    assert sampled(words=0) == []


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_not_above_zero_is_refused_before_any_work(temperature: float, tmp_path: Path) -> None:
    workload, store = text_workload(tmp_path / "no corpus"), ArtifactStore(tmp_path)
    with pytest.raises(ConfigurationError, match="above 0"):
        generate(workload, workload.recipe[0], Workspace(store), words=3, temperature=temperature, seed=0)


def test_weights_are_exponentials_over_the_temperature() -> None:
    logits = torch.tensor([0.0, 1.0, -3.0, 2.0])
    expected = logits.double().div(0.5).exp()
    weights = word_weights(logits, 0.5)
    torch.testing.assert_close(weights / weights.sum(), expected / expected.sum())
    assert torch.isfinite(word_weights(torch.tensor([0.0, 1e4]), 1e-3)).all()


def test_every_recipe_generates_words_of_the_vocabulary(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    workload, store = text_workload(corpus), ArtifactStore(tmp_path / "store")
    known = set((corpus / "train.txt").read_text(encoding="utf-8").split())
    for recipe in workload.recipe:
        text = "".join(generate(workload, recipe, Workspace(store), words=30, temperature=0.9, seed=1))
        assert set(text.split()) <= known
        assert text.split()


@pytest.mark.slow
def test_a_model_without_words_is_refused(tmp_path: Path) -> None:
    demo: Workload = find_workloads(["lstm-demo"], BUILT_IN)[0]
    with pytest.raises(ConfigurationError, match="does not generate text"):
        generate(demo, demo.recipe[0], Workspace(ArtifactStore(tmp_path)), words=3, temperature=1.0, seed=0)
