"""Every attack of ``benchmarks.attacks`` with Hypothesis making its choices, so that what gets through is made small.

``NIGHTQUANT_FUZZ_EXAMPLES`` says how many of each kind (default 20); the address space is bounded meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.attacks import ATTACKS
from benchmarks.attacks.outcome import bounded_memory

EXAMPLES = int(os.environ.get("NIGHTQUANT_FUZZ_EXAMPLES", "20"))


@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.slow
def test_nothing_gets_through(name: str) -> None:
    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def attack(chance: Random) -> None:
        with tempfile.TemporaryDirectory(prefix="nightquant-") as folder, bounded_memory():
            assert [*ATTACKS[name](chance, 1, Path(folder))] in (["refused"], ["harmless"])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol")
        attack()
