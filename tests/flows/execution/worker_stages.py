"""Stages for tests; they must be importable by name in a worker process."""

import hashlib
import os
import signal
import threading
import time
from pathlib import Path

from storage.errors import InputError
from storage.transfer import fetch as fetched


def echo(workspace, value):
    return value, str(workspace.store.root)


def pid(workspace):
    return os.getpid()


def leave_pid(workspace):
    (workspace.store.root / "pid").write_text(str(os.getpid()), encoding="ascii")


def wait_for(workspace, file):
    """Wait until somebody has made a file, a minute at most."""
    deadline = time.monotonic() + 60
    while not Path(file).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def fetch(workspace, url, folder):
    """Tell of the attempt, wait until that was heard, and ask for the file once."""
    attempt = 1
    while Path(folder, str(attempt)).exists():
        attempt += 1
    workspace.progress(attempt, 9, "attempts")
    wait_for(workspace, Path(folder, str(attempt)))
    sha256 = hashlib.sha256(b"content").hexdigest()
    with fetched(url, Path(folder, "downloads"), sha256=sha256) as source:
        return source.path().read_bytes()


def refuse(workspace):
    raise InputError("It is broken.", hint="Mend it.")


def hang(workspace):
    threading.Event().wait()


def be_killed(workspace):
    os.kill(os.getpid(), signal.SIGKILL)


def tell(workspace):
    workspace.progress(1, 2, "steps")


class TwoArgumentsError(Exception):
    """Cannot be unpickled: pickle gives its constructor the message alone."""

    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")


class HoldingError(Exception):
    """Cannot be pickled."""

    def __init__(self, message):
        super().__init__(message)
        self.held = lambda: None


class PanicError(BaseException):
    """No Exception, as what a library in Rust raises."""


FAILURES = {
    "two": lambda: TwoArgumentsError("left", "right"),
    "holding": lambda: HoldingError("held"),
    "panic": lambda: PanicError("index out of bounds"),
}


def fail(workspace, failure):
    raise FAILURES[failure]()
