"""The workflow on docs/hosts.md, checked without its service: its steps, commands, and the check of the gate."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from flows.cli import nightquant
from tests.documentation.pages import ROOT
from tests.flows.commands.filled_store import NIGHTS, write
from tests.storage.results.rows import promotion

pytestmark = pytest.mark.slow


def _workflow() -> dict[Any, Any]:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8"), re.S)
    found: dict[Any, Any] = yaml.safe_load(text)
    return found


(JOB,) = _workflow()["jobs"].values()
SCRIPTS = {step["name"]: step["run"] for step in JOB["steps"] if "run" in step}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "nightquant-store"
    write(folder, 0)
    return folder


def run(name: str, store: Path) -> subprocess.CompletedProcess[str]:
    """Run a step as the service does: `bash -e` in the working folder."""
    command = shlex.join([sys.executable, "-P", "-m", "flows"])
    return subprocess.run(
        ["bash", "-e", "-c", f'nightquant() {{ {command} "$@"; }}\n{SCRIPTS[name]}'],
        cwd=store.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NIGHTQUANT_STORE": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_of_the_workflow_exists() -> None:
    seen = set()
    for script in SCRIPTS.values():
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
        for line in script.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line, comments=True)
            if program != "nightquant":
                continue
            command: click.Command | None = nightquant
            while isinstance(command, click.Group):
                command = command.get_command(click.Context(nightquant), words.pop(0))
            assert command is not None
            command.make_parser(click.Context(command)).parse_args(words)
            seen.add(command.name)
    assert seen == {"workloads", "nightly", "query", "report", "gc"}
    target = re.search(r"make --directory nightquant (\S+)", SCRIPTS["Install nightquant"])
    assert target
    assert f"\n{target[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(("decision", "code"), [("promote", 0), ("hold", 0), ("reject", 1)])
def test_the_job_fails_if_the_gate_rejects_the_recipe(decision: str, code: int, store: Path) -> None:
    run_id = f"run-{NIGHTS[1]}"
    write(store, 1, promotions=[promotion(run_id, NIGHTS[1], decision=decision)])
    done = run("Check the gate", store)
    assert done.returncode == code, done.stdout + done.stderr
    assert decision in done.stdout


def test_the_report_is_where_the_job_looks_for_it(store: Path) -> None:
    done = run("Write the report", store)
    assert done.returncode == 0, done.stdout + done.stderr
    (uploaded,) = (step["with"]["path"] for step in JOB["steps"] if "upload-artifact" in step.get("uses", ""))
    assert (store.parent / uploaded).is_file()
