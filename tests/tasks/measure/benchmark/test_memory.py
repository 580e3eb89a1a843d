"""Peak memory, of subjects that hold a known amount or fail."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tasks.measure.benchmark.child import Limit, run_child
from tasks.measure.benchmark.messages import ChildSpec, MemoryReport
from tests.tasks.measure.benchmark.planted import LOADER, plan

MIB = 1 << 20


@pytest.mark.slow
def test_a_subjects_memory_is_counted_and_a_failing_subject_affects_no_other(tmp_path: Path) -> None:
    spec = ChildSpec(
        subjects=(
            plan(tmp_path, "small/eager", work=1),
            plan(tmp_path, "large/eager", work=1, mebibytes=200),
            plan(tmp_path, "broken/eager", fails="no such operator"),
            plan(tmp_path, "deadly/eager", dies=int(signal.SIGKILL)),
        ),
        loader=LOADER,
        threads=1,
        processes=3,
    )
    report = run_child("tasks.measure.benchmark.diagnostics", spec, MemoryReport, Limit())
    assert set(report.memory) == {"small/eager", "large/eager"}
    small, large = (report.memory[name] for name in ("small/eager", "large/eager"))
    assert 190 * MIB < large.rss_loaded_bytes - small.rss_loaded_bytes < 210 * MIB
    assert small.rss_loaded_bytes < 50 * MIB, "imports are not counted"
    assert large.peak_rss_bytes >= large.rss_loaded_bytes
    assert set(report.refused) == {"broken/eager", "deadly/eager"}
    assert report.refused["broken/eager"] == "RuntimeError: no such operator"
    assert report.refused["deadly/eager"].startswith("The candidate's memory process was killed by SIGKILL. ")
