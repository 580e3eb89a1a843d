"""A measurement's child process: its entry, its environment, and that it never outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from storage.errors import MeasurementError
from tasks.measure.benchmark.child import Limit, run_child
from tasks.measure.benchmark.messages import ChildSpec
from tasks.measure.benchmark.protocol import Session
from tests.tasks.measure.benchmark.entry import Collector
from tests.tasks.measure.benchmark.planted import LOADER, TINY, plan

CHILD = [sys.executable, "-m", "tasks.measure.benchmark.child"]

_PARENT = """
import signal
import sys
from tasks.measure.benchmark.messages import Subject
from tasks.measure.benchmark.protocol import Session
from tests.tasks.measure.benchmark.planted import LOADER, TINY
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
subject = Subject.model_validate_json(sys.argv[1])
Session(subject.name, TINY, loader=LOADER).measure([subject])
"""


def run(spec: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "spec").write_text(spec, encoding="utf-8")
    reader, writer = os.pipe()  # a child ends when its standard input does
    try:
        command = [*CHILD, "tests.tasks.measure.benchmark.entry", str(folder / "spec"), str(folder / "out.json")]
        return subprocess.run(
            command, stdin=reader, capture_output=True, text=True, check=False, start_new_session=True
        )
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.slow
def test_garbage_is_not_collected_during_imports_and_imported_objects_are_frozen(tmp_path: Path) -> None:
    done = run("go", tmp_path)
    assert done.returncode == 0, done.stderr
    state = Collector.model_validate_json((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (state.imported, state.running) == (False, True)
    assert state.frozen > 1000
    assert done.stdout == "said without a flush\n"


def test_a_failure_keeps_its_traceback_and_exit_code(tmp_path: Path) -> None:
    done = run("fail", tmp_path)
    assert done.returncode == 1
    assert "ValueError: asked to fail" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_child_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    command = [*CHILD, "tests.tasks.measure.benchmark.endless_import", "go", str(tmp_path / "out.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(120) == -signal.SIGKILL


def test_modules_of_the_working_folder_are_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tasks.py", "storage.py"):
        (tmp_path / name).write_text("raise RuntimeError('this is not nightquant')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    spec = ChildSpec(subjects=(), loader=LOADER, threads=1)
    state = run_child("tests.tasks.measure.benchmark.entry", spec, Collector, Limit())
    assert state.running


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_launch_ends_when_its_parent_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    subject = plan(tmp_path, "float/eager", waits=str(fifo))
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, subject.model_dump_json()], stderr=subprocess.DEVNULL
    ) as parent:
        with fifo.open(encoding="ascii") as stream:
            first = stream.readline()
            parent.send_signal(how)
            # The file ends when each child's end of the FIFO is closed: with the death of the last of them. A second
            # launch that loads beside the first may have written its number too.
            children = [int(line) for line in (first, *stream)]
            assert parent.pid not in children
        assert parent.wait() != 0


@pytest.mark.slow
def test_a_child_that_takes_too_long_is_stopped_and_the_setting_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    subject = plan(tmp_path, "float/eager", waits=str(fifo))
    others = psutil.Process().children()  # what tests before this one have begun
    with pytest.raises(MeasurementError, match="longer than 1 s") as failure:
        Session(subject.name, TINY, loader=LOADER, limit=Limit(1.0)).measure([subject])
    assert "NIGHTQUANT_STAGE_TIMEOUT_S" in str(failure.value)
    assert [child for child in psutil.Process().children() if child not in others] == []
