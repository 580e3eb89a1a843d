from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def completed(line: str, folder: Path) -> list[str]:
    """What bash is offered at the end of a line."""
    words = line.split(" ")
    variables = {"_NIGHTQUANT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "flows"], env=os.environ | variables, cwd=folder,
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return [row.partition(",")[2] for row in done.stdout.split()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nightquant com", ["compare"]),
        ("nightquant handoff r", ["rollback"]),
        ("nightquant status --fo", ["--format"]),
        ("nightquant show word", ["word-lm"]),
        ("nightquant nightly --workload ", ["lstm-demo", "python-text", "resnet18", "word-lm"]),
        ("nightquant sensitivity --workload resnet18 --recipe st", ["static-int8"]),
        ("nightquant sensitivity --workload no-such --recipe st", []),
        ("nightquant query --format j", ["json"]),
        ("nightquant ini", ["init"]),
        ("nightquant workloads --s", ["--schema", "--store"]),
    ],
)
@pytest.mark.slow
def test_commands_options_and_names_are_completed(line: str, expected: list[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.slow
def test_the_script_is_one_that_the_shell_reads(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows"], env=os.environ | {"_NIGHTQUANT_COMPLETE": f"{shell}_source"}, cwd=tmp_path,
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "_NIGHTQUANT_COMPLETE" in done.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True, timeout=60)
