from __future__ import annotations

import pytest

from benchmarks.regressions import NOISES, simulate


@pytest.mark.slow
def test_a_planted_slow_down_is_found_by_its_second_night_and_nothing_else_is() -> None:
    false_alarms, found, half_width = simulate(NOISES[0], quiet=15, planted=15, nights=24, seed=1)
    assert false_alarms == 0
    assert found[1] == 1.0  # share found by the second night
    assert 0.02 < half_width < 0.04
