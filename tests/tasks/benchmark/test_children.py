"""A measurement's child process never outlives who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.benchmark.planted import plan

_PARENT = """
import sys
from pathlib import Path
from tasks.benchmark.messages import Subject
from tasks.benchmark.protocol import measure
from tests.tasks.benchmark.planted import LOADER, TINY
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
