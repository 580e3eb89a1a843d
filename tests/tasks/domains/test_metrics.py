from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.domains.metrics import area_under_roc, macro_f1

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
    guess, truth, weights = (np.array(column) for column in zip(*rows, strict=True))
    assert macro_f1(guess, truth, weights) == pytest.approx(np.mean(found), abs=1e-12)


@given(PAIRS)
def test_auroc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, int, int]]) -> None:
    labelled = [(score, label % 2) for score, label, weight in rows for _ in range(weight)]
    pairs = list(product(*([score for score, label in labelled if label == side] for side in (1, 0))))
    score, label, weights = (np.array(column) for column in zip(*rows, strict=True))
    found = area_under_roc(score / 3, label % 2, weights)
    if not pairs:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(np.mean([(high > low) + (high == low) / 2 for high, low in pairs]), abs=1e-12)
