from __future__ import annotations

import pytest

from benchmarks.regressions import CAUSES, HISTORY, attributed, false_alarms, found_by, step


@pytest.mark.slow
def test_unchanged_candidates_cause_no_alert_on_irregular_nights() -> None:
    assert false_alarms(0.01, candidates=20, nights=15, history=HISTORY, seed=1) == (0, 0)


@pytest.mark.slow
@pytest.mark.long
def test_planted_slow_downs_are_found_within_days() -> None:
    assert found_by(0.01, step(-0.05), 5, candidates=40, history=HISTORY, seed=1)[4] > 0.9
    assert found_by(0.025, step(-0.1), 3, candidates=40, history=HISTORY, seed=1)[2] > 0.85


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cause", list(CAUSES))
def test_planted_causes_are_named(cause: str) -> None:
    assert min(attributed(cause, 0.01, -0.1, candidates=10, seed=1)) >= 0.8
