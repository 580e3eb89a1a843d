"""The pages about regular nights as written: their commands run in order against a real server and worker."""

import os
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT, Document
from tests.flows.processes import NIGHTQUANT

# A reader follows the pages in this order: the second needs the nights of the first.
PAGES = ("schedule.md", "monitoring.md")
BLOCKS = [block.text for page in PAGES for block in Document.read(ROOT / "docs" / page).shell if not block.not_run]


@pytest.mark.long
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_nothing_to_a_scheduled_night(site):
    site.variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = {}
    for command in [line for block in BLOCKS for line in block.splitlines() if line]:
        if command.startswith("prefect worker start"):
            log = site.folder / "worker.log"
            site.running.append(site.command("-c", f"exec {command}", program=("bash",), log=log))
        else:
            shown[command] = site.done("-c", command, program=("bash",))
    assert "lstm-demo" in shown['nightquant query "FROM leaderboard"']
    assert shown.keys() >= {"prefect --no-prompt deploy --all", "nightquant store check"}
    # Two runs of the deployment's smallest workload, found through DuckDB in the backup of the store.
    query = "SELECT count(*) AS n FROM runs WHERE candidates_failed = 0"
    assert site.done("query", "--format", "csv", query, program=NIGHTQUANT).split() == ["n", "2"]
