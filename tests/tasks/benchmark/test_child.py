"""The entry of a measurement's child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

CHILD = [sys.executable, "-m", "tasks.benchmark.child"]


def run(spec: str, out: Path) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()  # a child ends when its standard input does
    try:
        command = [*CHILD, "tests.tasks.benchmark.entry", spec, str(out)]
        return subprocess.run(
            command, stdin=reader, capture_output=True, text=True, check=False, start_new_session=True
        )
    finally:
        os.close(reader)
        os.close(writer)


def test_garbage_is_not_collected_while_importing_and_what_was_imported_is_frozen(tmp_path: Path) -> None:
    done = run("go", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (state["imported"], state["running"]) == (False, True)
    assert state["frozen"] > 1000


def test_what_was_said_is_not_lost_at_the_end(tmp_path: Path) -> None:
    assert run("go", tmp_path / "out.json").stdout == "said without a flush\n"


def test_a_failure_keeps_its_traceback_and_exit_code(tmp_path: Path) -> None:
    done = run("fail", tmp_path / "out.json")
    assert done.returncode == 1
    assert "ValueError: asked to fail" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_child_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    command = [*CHILD, "tests.tasks.benchmark.endless_import", "go", str(tmp_path / "out.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(120) == -signal.SIGKILL
