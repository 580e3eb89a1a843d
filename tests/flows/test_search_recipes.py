"""Searches of a tiny workload: in a night, by a command that knows the night's answers, and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flows.request import SearchRequest
from storage.check import check
from storage.errors import ConfigurationError
from storage.results.query import run_query
from tests.documentation.pages import ROOT
from tests.flows.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

WORKLOAD = """
schema_version = 1
name = "tiny"
description = "tiny images"
domain = "image-classification"
[data]
kind = "rendered-characters"
characters = "AH"
image_size = 16
train = 32
calibration = 8
valid = 32
test = 32
[model]
kind = "factory"
factory = "tests.tasks.quantize.networks:plain"
[checkpoint]
kind = "seeded"
[[recipe]]
name = "float"
method = "none"
runtimes = ["torchscript"]
[benchmark]
baseline = "float/torchscript"
[gate]
objective = "smallest"
max_quality_drop = 100
min_speedup = 0.01
[search]
methods = ["static"]
runtimes = ["torchscript"]
finalists = 1
"""
# ONNX Runtime's files are smaller, and are timed because of `min_speedup`.
WIDER = WORKLOAD.replace("finalists", 'runtimes = ["torchscript", "onnxruntime"]\nfinalists').replace(
    'methods = ["static"]\nruntimes = ["torchscript"]', 'methods = ["static"]'
)


def begin(folder: Path, home: Path, command: str, *options: str, workload: str = WORKLOAD) -> Command:
    """Begin a command over the workload, whose factory is one of the tests' networks."""
    path = folder / "tiny.toml"
    path.write_text(workload)
    arguments = "--workload", str(path), "--store", str(folder / "store"), *options
    return Command(command, *arguments, home=home, cwd=folder, PYTHONPATH=str(ROOT))


def ended(command: Command) -> tuple[int, str]:
    output, _ = command.process.communicate(timeout=600)
    assert command.wait_until_gone() == []
    assert "Traceback" not in output, output
    return command.process.returncode, output


def document(output: str) -> dict[str, Any]:
    """The JSON document after the lines about progress."""
    found: dict[str, Any] = json.loads(output[output.index("\n{\n") :])
    return found


class Searched:
    """A night that searches, a search that knows the night's answers, and a wider search that is stopped."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.store = folder / "store"
        self.night = ended(begin(folder, home, "nightly", "--profile", "quick"))
        self.again = ended(begin(folder, home, "search", "--format", "json"))
        wider = begin(folder, home, "search", workload=WIDER)
        wider.wait_for("time trials …")
        for pid, _ in wider.survivors():  # as a terminal does
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        self.stopped = ended(wider)

    @property
    def chosen(self) -> str:
        """The night's finalist: TorchScript files of two engines differ by the digits of type names, so either wins."""
        (chosen,) = self.rows("select recipe from trials where outcome = 'chosen' and recipe like 'static%'")
        return str(chosen["recipe"])

    def rows(self, query: str) -> list[dict[str, Any]]:
        return run_query(self.store, query).to_pylist()


@pytest.fixture(scope="module")
def home(migrated_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(migrated_home, tmp_path_factory.mktemp("home") / "prefect"))


@pytest.fixture(scope="module")
def searched(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    return Searched(tmp_path_factory.mktemp("searched"), home)


@pytest.mark.long
def test_a_night_judges_its_searchs_finalists_and_records_the_trials(searched: Searched) -> None:
    code, output = searched.night
    assert code == 0, output
    measured = searched.rows("select recipe, runtime, status from measurements where setting = 'primary' order by all")
    assert [row["recipe"] for row in measured] == ["float", searched.chosen]
    assert {(row["runtime"], row["status"]) for row in measured} == {("torchscript", "ok")}
    (decision,) = searched.rows("select recipe, decision from promotions")
    assert decision["recipe"] == searched.chosen
    assert check(searched.store).problems == ()
    rows = searched.rows(
        "select outcome, split, samples, is_known, cost_s > 0 as cost from trials where outcome = 'chosen'"
    )
    assert rows == [{"outcome": "chosen", "split": "valid", "samples": 32, "is_known": False, "cost": True}]
    (run,) = searched.rows("select message from runs")
    assert "tiny: the search spent" in run["message"]
    assert "chose 1 finalist" in run["message"]


@pytest.mark.long
def test_a_search_after_the_night_reuses_all_answers_and_measures_nothing(searched: Searched) -> None:
    code, output = searched.again
    found = document(output)
    assert code == 0, output
    assert found["spent_s"] == 0.0
    assert [trial["recipe"]["name"] for trial in found["finalists"]] == [searched.chosen]
    assert all(trial["known"] for trial in found["trials"] if trial["size_bytes"])
    assert "evaluate" not in output.partition("\n{\n")[0]


@pytest.mark.long
def test_control_c_shows_the_best_recipes_so_far(searched: Searched) -> None:
    code, output = searched.stopped
    assert code == 130, output
    assert "SIGINT stopped it" in output
    (recipe,) = tomllib.loads(output[output.index("[[recipe]]") :].partition("nightquant:")[0])["recipe"]
    assert (recipe["method"], recipe["runtimes"]) == ("static", ["torchscript"])


def test_a_workload_without_a_bound_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    text = WORKLOAD.replace("max_quality_drop = 100", "").partition("[search]")[0]
    (tmp_path / "tiny.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"does not limit the quality loss.*max_quality_drop"):
        SearchRequest(workload=str(tmp_path / "tiny.toml")).load_workload()
