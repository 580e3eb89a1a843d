"""A measurement's child process never outlives who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from storage.errors import MeasurementError
from tasks.benchmark.children import Limit
from tasks.benchmark.protocol import measure
from tests.tasks.benchmark.planted import LOADER, TINY, plan

_PARENT = """
import signal
import sys
from pathlib import Path
from tasks.benchmark.messages import Subject
from tasks.benchmark.protocol import measure
from tests.tasks.benchmark.planted import LOADER, TINY
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
measure([Subject.model_validate_json(sys.argv[1])], "float/eager", TINY, 1, loader=LOADER)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_launch_ends_when_its_parent_is_ended(tmp_path: Path, how: signal.Signals) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    subject = plan(tmp_path, "float/eager", waits=str(fifo))
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, subject.model_dump_json()], stderr=subprocess.DEVNULL
    ) as parent:
        with fifo.open(encoding="ascii") as stream:
            child = int(stream.readline())
            assert child != parent.pid
            parent.send_signal(how)
            # The end of the file comes when the child's own end of the FIFO is closed: with its death.
            assert stream.read() == ""
        assert parent.wait() != 0


@pytest.mark.parametrize("limit_s", [None, 600.0])
def test_child_that_ends_in_time_gives_its_report(tmp_path: Path, limit_s: float | None) -> None:
    measured = measure(
        [plan(tmp_path, "float/eager", work=1)], "float/eager", TINY, 1, loader=LOADER, limit=Limit(limit_s)
    )
    assert measured.names() == ["float/eager", "float/eager#copy"]


def test_child_that_takes_too_long_is_ended_and_the_setting_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    subject = plan(tmp_path, "float/eager", waits=str(fifo))
    others = psutil.Process().children()  # what tests before this one have begun
    with pytest.raises(MeasurementError, match="longer than 1 s") as failure:
        measure([subject], "float/eager", TINY, 1, loader=LOADER, limit=Limit(1.0))
    assert "NIGHTQUANT_STAGE_TIMEOUT_S" in str(failure.value)
    assert [child for child in psutil.Process().children() if child not in others] == []


def test_time_that_is_left_runs_out() -> None:
    assert Limit().left_s() is None
    assert 0 < (Limit(60.0).left_s() or 0) <= 60
    assert Limit(60.0, made_at=time.monotonic() - 100).left_s() == 0
