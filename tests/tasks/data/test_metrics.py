from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.data import metrics, scores
from tasks.data.metrics import METRICS, area_under_roc, macro_f1, perplexity_of, reciprocal_ranks
from tasks.data.scores import BatchResults

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=30).filter(
    lambda rows: any(weight for *_, weight in rows)
)


@given(PAIRS)
def test_macro_f1_is_the_mean_of_the_harmonic_means_of_precision_and_recall(rows: list[tuple[int, int, int]]) -> None:
    repeated = [(guess, truth) for guess, truth, weight in rows for _ in range(weight)]
    found = []
    for label in {label for pair in repeated for label in pair}:
        hits = sum(pair == (label, label) for pair in repeated)
        guessed, there = (sum(pair[side] == label for pair in repeated) for side in (0, 1))
        precision, recall = hits / max(guessed, 1), hits / max(there, 1)
        found.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    columns = np.array(rows)
    assert macro_f1(columns[:, :2])(columns[:, 2]) == pytest.approx(np.mean(found), abs=1e-12)


@given(PAIRS)
@pytest.mark.slow
def test_auroc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, int, int]]) -> None:
    labelled = [(score, label % 2) for score, label, weight in rows for _ in range(weight)]
    pairs = list(product(*([score for score, label in labelled if label == side] for side in (1, 0))))
    columns = np.array(rows)
    found = area_under_roc(np.stack([columns[:, 0] / 3, columns[:, 1] % 2], axis=1))(columns[:, 2])
    if pairs:
        assert found == pytest.approx(np.mean([(high > low) + (high == low) / 2 for high, low in pairs]), abs=1e-12)


TIES = st.integers(2, 8).flatmap(lambda k: st.lists(st.lists(st.integers(0, 2), min_size=k, max_size=k), min_size=1))


@given(TIES)
def test_equal_logits_rank_by_class_number_as_in_argmax(rows: list[list[int]]) -> None:
    outputs = torch.tensor(rows).float()
    order = [sorted(range(len(row)), key=lambda each: (-row[each], each)) for row in rows]
    for target in range(outputs.shape[1]):
        targets = torch.full((len(rows),), target)
        for name, most in (("top1", 1), ("top5", 5)):
            expected = [100 * (target in each[:most]) for each in order]
            assert METRICS[name].rows(outputs, targets).tolist() == expected


@pytest.mark.parametrize("at_once", [1, 7, 1 << 22])
def test_answers_as_near_as_the_own_one_add_half_a_rank_each_in_blocks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(metrics, "_SIMILARITIES", at_once)
    answers = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
    queries = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.0], [3.0, 3.0], [0.0, 0.0]])
    # The third query's own answer is behind three others; the last query is equally far from all.
    assert reciprocal_ranks(queries, answers).tolist() == [1 / 1.5, 1 / 1.5, 1 / 4, 1.0, 1 / 3]


@pytest.mark.parametrize("name", ["f1-macro", "auroc", "perplexity"])
def test_only_an_interval_costs_resamples(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    counted: list[int] = []
    monkeypatch.setattr(scores, "resampled", lambda value, size: counted.append(size))
    results = BatchResults([METRICS[name].take(torch.eye(2), torch.arange(2))])
    scored = METRICS[name].conclude(results)
    assert not counted
    assert scored.resample is not None
    scored.resample(), scored.resample()
    assert counted == [2]


@pytest.mark.slow
def test_a_ratio_is_that_of_the_sums_and_not_the_mean_of_the_rows() -> None:
    assert perplexity_of(np.array([[1.0, 1.0], [0.0, 9.0]]))(np.ones(2)) == pytest.approx(np.exp(0.1))
    assert np.isnan(perplexity_of(np.zeros((2, 2)))(np.ones(2)))
