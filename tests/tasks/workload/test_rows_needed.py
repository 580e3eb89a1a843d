"""How many rows would decide an undecided rule: checked by drawing as many."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.paired import score_difference
from tasks.workload.rows_needed import rows_to_decide


def interval(lost: int, gained: int, rows: int) -> tuple[float, float, float]:
    """The drop of an accuracy in points, and its interval, if so many answers of `rows` changed."""
    before = np.full(rows, 100.0)
    before[lost : lost + gained] = 0
    after = before.copy()
    after[:lost], after[lost : lost + gained] = 0, 100
    mean, low, high = score_difference(before, after)
    return -mean, -high, -low


@pytest.mark.parametrize(("lost", "gained"), [(10, 10), (16, 14), (8, 9), (14, 5)])
def test_as_many_rows_with_the_same_disagreement_decide_and_a_quarter_does_not(lost: int, gained: int) -> None:
    drop, low, high = interval(lost, gained, 1000)
    assert low < 0.5 < high
    needed = rows_to_decide(drop, low, high, 0.5, 1000)
    assert needed is not None
    for rows, is_decided in ((needed, True), (needed // 4, False)):
        _, low, high = interval(round(lost * rows / 1000), round(gained * rows / 1000), rows)
        assert (not low <= 0.5 < high) is is_decided


def test_the_number_is_rounded_up_to_two_digits_and_is_unknown_at_the_bound() -> None:
    assert rows_to_decide(0.0, -1.07, 1.07, 0.5, 1000) == 4600
    assert rows_to_decide(1.0, 0.4, 1.6, 0.5, 100) == 150
    assert rows_to_decide(0.5, -0.5, 1.5, 0.5, 1000) is None
    assert rows_to_decide(0.4999, -0.5, 1.5, 0.5, 1000) is None
