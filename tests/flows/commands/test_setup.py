"""``nightquant doctor``, ``workloads`` and ``store``, what a preview says in lines, and what --debug adds."""

from __future__ import annotations

import datetime as dt
import json
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from flows.commands import print_tracebacks
from flows.commands.setup import doctor, preview_lines, workloads
from flows.commands.setup import store as store_group
from storage.errors import StoreError
from storage.results.catalog import refresh
from tasks.values.refs import ModuleCoverage
from tasks.values.results import CandidatePreview, Preview, QualityLoss
from tests.documentation.pages import ROOT
from tests.storage.results.rows import write_night


@pytest.mark.long
@pytest.mark.slow
def test_exit_code_follows_the_checks(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor, ["--store", str(tmp_path), "--format", "json"])
    report = json.loads(result.stdout)
    problems = [check for check in report["checks"] if check["status"] == "problem"]
    assert report["trusted"] is not bool(problems)
    assert result.exit_code == (1 if problems else 0)
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert {"machine", "int8 instructions", "int8 kernels", "A/A", "store"} <= found.keys()
    assert "×" in found["int8 kernels"]
    assert "itself" in found["A/A"]
    # Noise may be found here or not; but what is found to be wrong comes with what to do.
    assert all(check["advice"] for check in report["checks"] if check["status"] != "ok")


HANGING = """
import threading

def build(**arguments):
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_good_workload_is_described_and_checked_even_if_another_workload_hangs(
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
    options += ["-w", str(tmp_path / "hanging.toml"), "-w", "lstm-demo"]
    done = CliRunner().invoke(workloads, options, standalone_mode=False)
    assert done.return_value == 2
    assert f"classifier: data and model: the stage was stopped after {limit_s} s." in done.stdout
    assert "lstm-demo: fits" in done.stdout


FLOAT = [ModuleCoverage(module=f"conv{n}", type="Conv2d", parameters=9, quantized=False, reason="x") for n in range(7)]
FOUND = Preview(
    workload="net",
    problems=("int8/eager: it failed",),
    tracebacks=("Traceback (most recent call last): of a library's\n",),
    candidates=(
        CandidatePreview(candidate="int8/eager", obstacle="it failed\nbelow"),
        CandidatePreview(
            candidate="int8/openvino",
            coverage=(ModuleCoverage(module="fc", type="Linear", parameters=4, quantized=True), *FLOAT),
        ),
    ),
)


def test_a_candidate_is_a_line_and_each_reason_names_the_first_modules() -> None:
    assert [str(line) for line in preview_lines(FOUND)] == [
        "net: 1 problem",
        "  ✗ int8/eager: it failed",
        "  ✓ int8/openvino: 1 of 8 modules quantized",
        "      stays float: conv0 (Conv2d), conv1 (Conv2d), conv2 (Conv2d), conv3 (Conv2d), conv4 (Conv2d), 2 more: x",
        "  ✗ int8/eager: it failed",
    ]


def test_tracebacks_are_printed_by_debug_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_tracebacks(FOUND.tracebacks)  # without a command line
    for debug in (False, True):
        with click.Context(click.Command("nightquant"), obj=debug):
            print_tracebacks(FOUND.tracebacks * 2)
        assert capsys.readouterr().err == (FOUND.tracebacks[0] + "\n" if debug else "")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(2.0, 2.7, "is 35.0% worse in mse"), (5.8e-8, 0.00345, "changes mse from 5.8e-08 to 0.00345")],
)
def test_a_loss_is_a_share_of_the_quality_unless_that_is_nearly_nothing(before: float, after: float, said: str) -> None:
    loss = QualityLoss(metric="mse", higher_is_better=False, before=before, after=after, share=0.35, samples=1024)
    assert loss.describe().startswith(f"{said} on 1,024 samples. ")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_night(tmp_path, dt.date(2026, 3, 1))
    refresh(tmp_path)
    return tmp_path


def store_command(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(store_group, [*arguments, "--store", str(store)], catch_exceptions=False)


@pytest.mark.slow
def test_check_exits_with_0_without_problems_and_otherwise_with_1_and_advice(store: Path) -> None:
    good = store_command(store, "check")
    assert (good.exit_code, good.output) == (0, f"2 results files and 0 artifacts in {store}: no problems.\n")
    (store / "results/runs/notes.txt").touch()
    bad = store_command(store, "check")
    assert bad.exit_code == 1
    assert "notes.txt does not belong here.\n    Move the file out of the store." in bad.output
    assert bad.output.endswith("1 problem.\n")


def test_check_refuses_a_location_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="There is no store at") as refusal:
        store_command(tmp_path / "missing", "check")
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "missing").exists()


@pytest.mark.slow
def test_compact_reports_its_work_and_repairs_the_catalog(store: Path) -> None:
    (store / "results.duckdb").unlink()
    assert "compacted measurements 2026-03" in store_command(store, "compact").output
    assert (store / "results.duckdb").exists()


@pytest.mark.slow
def test_gc_dry_run_reports_the_files_that_it_would_remove(store: Path) -> None:
    assert "0 artifacts and 0 left-over files would be removed" in store_command(store, "gc", "--dry-run").output
    assert store_command(store, "gc", "--keep-nights", "0").exit_code == 2
