"""``nightquant doctor`` and ``workloads`` at the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.commands.setup import doctor, workloads
from tests.documentation.pages import ROOT


@pytest.mark.slow
def test_exit_code_follows_the_checks(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor, ["--store", str(tmp_path), "--format", "json"])
    report = json.loads(result.stdout)
    problems = [check for check in report["checks"] if check["status"] == "problem"]
    assert report["trusted"] is not bool(problems)
    assert result.exit_code == (1 if problems else 0)
    names = {check["name"] for check in report["checks"]}
    assert {"machine", "int8 instructions", "int8 engines", "int8 kernels", "A/A", "store"} <= names
    # Noise may be found here or not; but what is found to be wrong comes with what to do.
    assert all(check["advice"] for check in report["checks"] if check["status"] != "ok")


HANGING = """
import threading

def build(**arguments):
    threading.Event().wait()
"""


@pytest.mark.slow
def test_a_good_workload_is_described_and_beside_one_that_hangs_it_is_checked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, began = ["--check", "--store", str(tmp_path / "store")], time.monotonic()
    done = CliRunner().invoke(workloads, [*options, "-w", "lstm-demo"], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert "lstm-demo: fits" in done.stdout
    assert "✓ dynamic-int8/torchscript: 1 of 1 module quantized" in done.stdout
    assert 'not static: domain "sequence" does not provide calibration inputs' in done.stdout
    # The limit holds for both, and on a busy machine a good check takes long, too.
    limit_s = round(10 + 3 * (time.monotonic() - began))
    (tmp_path / "hanging_code.py").write_text(HANGING, encoding="utf-8")
    text = (ROOT / "docs" / "examples" / "classifier.toml").read_text(encoding="utf-8")
    (tmp_path / "hanging.toml").write_text(text.replace("classifier:build", "hanging_code:build"), encoding="utf-8")
    monkeypatch.setenv("NIGHTQUANT_STAGE_TIMEOUT_S", str(limit_s))
    options += ["-w", str(tmp_path / "hanging.toml"), "-w", "lstm-demo", "--format", "json"]
    done = CliRunner().invoke(workloads, options, standalone_mode=False)
    hung, good = json.loads(done.stdout)
    assert done.return_value == 2
    assert hung["problems"] == [
        f"classifier: data and model: the stage was stopped after {limit_s} s. To allow more time, raise "
        "NIGHTQUANT_STAGE_TIMEOUT_S or, in a search, its budget."
    ]
    assert good["problems"] == []
