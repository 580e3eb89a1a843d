"""Tests that depend on the processor's int8 instructions, run again as on processors that have fewer of them.

oneDNN, torch and this project's operators have switches for this. ONNX Runtime and OpenVINO have none: their tests set
what files are made for instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.environment.machine import this_machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif("avx2" not in this_machine().isa, reason="the switches are about instructions of x86-64"),
]

ROOT = Path(__file__).parents[2]
LEVELS = {
    "AVX-512 without VNNI": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "NIGHTQUANT_ISA": "avx2"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "NIGHTQUANT_ISA": "avx2"},
}
TESTS = (
    "tests/tasks/quantize/graph/test_convert.py",
    "tests/tasks/quantize/test_trained.py",
    "tests/tasks/runtimes/test_base.py",
)


@pytest.mark.parametrize("level", LEVELS)
def test_candidates_of_onednn_are_right_on_older_processors(tmp_path: Path, level: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run(
        [*command, "-k", "onednn", *TESTS], cwd=ROOT, env=inherited | LEVELS[level], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-10_000:]
