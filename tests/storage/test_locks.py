"""Locks: exclusive between processes, and free as soon as their holder is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import Timeout

from storage.errors import StoreError
from storage.locks import file_lock, host_lock, passing_lock

_ASK = """
import sys
from storage.locks import host_lock
with host_lock(sys.argv[1], on_wait=lambda: print("waits", flush=True)):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def asking(name: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that asks for a lock, prints "waits" if it has to, then "held", and keeps it until it is told."""
    command = [sys.executable, "-c", _ASK, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_holder_frees_the_lock_for_a_waiter(how: signal.Signals) -> None:
    with asking("test") as process:
        assert heard(process) == "held"
        waited: list[bool] = []

        def kill() -> None:
            waited.append(True)
            process.send_signal(how)

        # The lock is held when it is asked for; killing the holder is all that frees it.
        with host_lock("test", on_wait=kill):
            assert waited == [True]
        assert process.wait() == -how


def test_other_names_do_not_wait() -> None:
    with asking("test") as process:
        assert heard(process) == "held"
        waited: list[bool] = []
        with host_lock("other", on_wait=lambda: waited.append(True)):
            pass
        assert waited == []


def test_children_do_not_keep_the_lock() -> None:
    with host_lock("test"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, host_lock("test"):
        child.communicate(b"\n")


def test_a_file_lock_keeps_everybody_else_out_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "a" / "folder" / "lock"
    with file_lock(path), pytest.raises(Timeout), file_lock(path, wait=False):
        pass
    with file_lock(path, wait=False):
        pass


def test_a_file_lock_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"), file_lock(tmp_path / "file" / "lock"):
        pass


def test_a_passing_lock_is_held_by_one_at_a_time_and_leaves_no_file(tmp_path: Path) -> None:
    path, inside, most, done = tmp_path / "work.lock", [0], [0], []

    def work() -> None:
        for _ in range(5):
            with passing_lock(path):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                assert path.is_file()
                time.sleep(0.01)
                inside[0] -= 1
                done.append(True)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert most == [1]
    assert len(done) == 4 * 5
    assert not path.exists()
