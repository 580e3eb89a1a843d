"""Losses along a stream: exact as the tutorial's, and the same words in the same order when run in segments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tasks.data.outputs import intra_op_threads
from tasks.domains.language_model import Evaluate, WordLanguageModelSpec
from tasks.domains.language_model.domain import WordLanguageModel, segment_losses, word_losses

VOCABULARY, LAYERS, HIDDEN = 30, 2, 8
SPEC = WordLanguageModelSpec(kind="word-lm", embedding_size=12, hidden_size=HIDDEN, layers=LAYERS)


@pytest.fixture
def model() -> WordLanguageModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return WordLanguageModel(VOCABULARY, 12, HIDDEN, LAYERS, 0.5).eval()


def stream(words: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (words,), generator=generator, dtype=torch.int32)


def exact_losses(model: nn.Module, ids: Tensor, bptt: int = 25) -> Tensor:
    """The tutorial's losses, word by word."""
    h, c = torch.zeros(LAYERS, 1, HIDDEN), torch.zeros(LAYERS, 1, HIDDEN)
    losses = []
    for start in range(0, len(ids) - 1, bptt):
        following = ids[start + 1 : start + 1 + bptt].long()
        with torch.no_grad():
            logits, h, c = model(ids[start : start + len(following)].long().unsqueeze(1), h, c)
        losses.append(nn.functional.cross_entropy(logits.squeeze(1), following, reduction="none"))
    return torch.cat(losses)


class Memoryless(nn.Module):
    """Predicts from the last word alone, so that every way of cutting the stream must give the same losses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5))

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert h.shape == c.shape == (LAYERS, tokens.shape[1], HIDDEN)
        return self.table[tokens], h, c


@pytest.mark.parametrize("words", [2, 25, 26, 27, 203])
@pytest.mark.slow
def test_the_exact_mode_is_the_tutorials_procedure(model: WordLanguageModel, words: int) -> None:
    ids = stream(words)
    losses = word_losses(model, ids, SPEC, Evaluate(mode="exact", sequence_length=25))
    assert torch.equal(losses, exact_losses(model, ids))
    assert losses.shape == (words - 1,)


@given(words=st.integers(2, 300), segments=st.integers(1, 40), warm_up=st.integers(0, 20), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_segments_give_every_word_once_and_in_order(words: int, segments: int, warm_up: int, seed: int) -> None:
    ids, model = stream(words, seed), Memoryless()
    exact = exact_losses(model, ids)
    torch.testing.assert_close(segment_losses(model, ids, SPEC, segments, warm_up), exact)


def test_warmed_up_segments_agree_with_the_sequential_run(model: WordLanguageModel) -> None:
    ids = stream(2000)
    with torch.inference_mode():
        exact = exact_losses(model, ids).mean().item()
        cold = segment_losses(model, ids, SPEC, 16, 0).mean().item()
        warm = segment_losses(model, ids, SPEC, 16, 32).mean().item()
    assert warm == pytest.approx(exact, abs=1e-5)
    assert abs(warm - exact) <= abs(cold - exact)


def test_the_number_of_cores_does_not_change_segment_losses(model: WordLanguageModel) -> None:
    ids, results = stream(900), []
    for cores in (1, 2, 5):
        with torch.inference_mode(), intra_op_threads(cores):
            results.append(segment_losses(model, ids, SPEC, 20, 16))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])
