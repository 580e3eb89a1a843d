"""Host locks: exclusive between processes, and free as soon as their holder is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.locks import host_lock

_HOLD = """
import sys
from pathlib import Path
from storage.locks import host_lock
with host_lock("test", folder=Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def _holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_free_lock_is_taken_without_waiting(tmp_path: Path) -> None:
    waited: list[bool] = []
    with host_lock("test", folder=tmp_path, on_wait=lambda: waited.append(True)):
        pass
    assert waited == []


def test_lock_is_free_again_after_an_error_inside_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="inside"), host_lock("test", folder=tmp_path):
        raise RuntimeError("inside")
    with host_lock("test", folder=tmp_path):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_holder_frees_the_lock_for_a_waiter(tmp_path: Path, how: signal.Signals) -> None:
    with _holder(tmp_path) as process:
        waited: list[bool] = []

        def kill() -> None:
            waited.append(True)
            process.send_signal(how)

        # The lock is held when it is asked for; killing the holder is all that frees it.
        with host_lock("test", folder=tmp_path, on_wait=kill):
            assert waited == [True]
        assert process.wait() == -how


def test_other_names_do_not_wait(tmp_path: Path) -> None:
    with _holder(tmp_path) as process:
        waited: list[bool] = []
        with host_lock("other", folder=tmp_path, on_wait=lambda: waited.append(True)):
            pass
        process.communicate("")
    assert waited == []


def test_children_do_not_keep_the_lock(tmp_path: Path) -> None:
    with host_lock("test", folder=tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, host_lock("test", folder=tmp_path):
        child.communicate(b"\n")


def test_unusable_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"), host_lock("test", folder=tmp_path / "missing"):
        pass


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "a b"])
def test_odd_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a valid lock name"), host_lock(name, folder=tmp_path):
        pass
