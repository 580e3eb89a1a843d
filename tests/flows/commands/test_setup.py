"""``nightquant doctor`` and ``workloads`` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.commands.setup import doctor, workloads
from flows.request import BUILT_IN
from storage.errors import ConfigurationError
from tasks.runtimes.torchscript import TorchScript


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


def test_a_workload_whose_runtime_is_not_installed_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchScript, "distributions", ("torch", "some-runtime"))
    monkeypatch.setattr(TorchScript, "extra", "some-extra")
    refused = CliRunner().invoke(workloads, ["--workload", "lstm-demo"])
    assert isinstance(refused.exception, ConfigurationError)
    assert str(refused.exception) == (
        'The runtime "torchscript" needs some-runtime, which is not installed. '
        "Install it: pip install 'nightquant[some-extra]'."
    )
    assert CliRunner().invoke(workloads, []).exit_code == 0


def test_a_description_that_looks_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    text = (BUILT_IN / "lstm-demo.toml").read_text(encoding="utf-8")
    lines = ['description = "see [/foo]"' if line.startswith("description") else line for line in text.split("\n")]
    (tmp_path / "demo.toml").write_text("\n".join(lines), encoding="utf-8")
    done = CliRunner().invoke(workloads, ["--workload", str(tmp_path / "demo.toml")])
    assert done.exit_code == 0
    assert "[/foo]" in done.output
