"""Peak memory, of subjects that hold a known amount or fail."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tasks.benchmark.messages import ChildSpec, MemoryReport
from tests.tasks.benchmark.planted import LOADER, plan

MIB = 1 << 20


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryReport, str]:
    """The report on four subjects, and what the process wrote to its log."""
    folder = tmp_path_factory.mktemp("memory")
    spec = ChildSpec(
        subjects=(
            plan(folder, "small/eager", work=1),
            plan(folder, "large/eager", work=1, mebibytes=200),
            plan(folder, "broken/eager", fails="no such operator"),
            plan(folder, "deadly/eager", dies=int(signal.SIGKILL)),
        ),
        loader=LOADER,
        threads=1,
    )
    (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
    files = [str(folder / name) for name in ("spec.json", "out.json")]
    command = [sys.executable, "-m", "tasks.benchmark.child", "tasks.benchmark.memory", *files]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        log = child.stderr.read()
    return MemoryReport.model_validate_json((folder / "out.json").read_text(encoding="utf-8")), log


@pytest.mark.slow
def test_what_a_subject_holds_is_counted_and_imports_are_not(measured: tuple[MemoryReport, str]) -> None:
    memory = measured[0].memory
    assert set(memory) == {"small/eager", "large/eager"}
    extra = memory["large/eager"].rss_loaded_bytes - memory["small/eager"].rss_loaded_bytes
    assert 190 * MIB < extra < 210 * MIB
    assert memory["small/eager"].rss_loaded_bytes < 50 * MIB
    assert memory["large/eager"].peak_rss_bytes >= memory["large/eager"].rss_loaded_bytes


@pytest.mark.slow
def test_a_subject_that_fails_costs_itself_alone_and_leaves_its_traceback(measured: tuple[MemoryReport, str]) -> None:
    report, log = measured
    assert set(report.refused) == {"broken/eager", "deadly/eager"}
    assert report.refused["broken/eager"] == "RuntimeError: no such operator"
    assert report.refused["deadly/eager"].startswith("The candidate's memory process was killed by SIGKILL. ")
    assert "Traceback" in log
    assert "planted.py" in log
