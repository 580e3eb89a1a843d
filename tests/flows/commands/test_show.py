"""``nightquant doctor`` at the command line: its exit code says whether timings here can be trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.commands.show import doctor


@pytest.mark.slow
def test_exit_code_follows_the_checks(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor, ["--store", str(tmp_path), "--format", "json"])
    report = json.loads(result.stdout)
    problems = [check for check in report["checks"] if check["status"] == "problem"]
    assert report["trusted"] is not bool(problems)
    assert result.exit_code == (1 if problems else 0)
    names = {check["name"] for check in report["checks"]}
    assert {"machine", "int8 instructions", "int8 engines", "int8 kernels", "A/A", "store", "prefect"} <= names
    # Noise may be found here or not; but what is found to be wrong comes with what to do.
    assert all(check["advice"] for check in report["checks"] if check["status"] != "ok")
