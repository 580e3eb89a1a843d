"""How long a command waits for its own Prefect server, with a process in its place that works, idles or ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flows.execution.server import wait_for
from storage.errors import ConfigurationError

_WORKS = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass\n"


@contextmanager
def _server(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.slow
def test_a_server_that_does_nothing_is_given_up() -> None:
    with (
        _server("import time; time.sleep(600)") as process,
        pytest.raises(ConfigurationError, match="did not start within"),
    ):
        # More than a Python takes to start, on a machine that others load.
        wait_for(process, 6.0, lambda _: None)


@pytest.mark.slow
def test_a_server_that_ends_is_not_waited_for() -> None:
    with _server("raise SystemExit(7)") as process, pytest.raises(ConfigurationError, match="exited with code 7"):
        wait_for(process, 60.0, lambda _: None)
