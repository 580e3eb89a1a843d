"""How long a command waits for its own Prefect server, with a process in its place that idles or ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flows.execution import server
from storage.errors import ConfigurationError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [("import time; time.sleep(600)", "did not start within 6 s"), ("raise SystemExit(7)", "exited with code 7")],
)
def test_a_server_that_idles_or_ends_is_given_up(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than a Python takes to start, on a machine that others load.
    monkeypatch.setattr(server, "_STARTUP_S", 6.0)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(ConfigurationError, match=said):
            server._wait_for(process)
        process.kill()
