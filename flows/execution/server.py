"""The Prefect API that a command uses: the configured server, or a server that runs only as long as the command."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx

import flows
from storage.errors import ConfigurationError, NightquantError
from storage.locks import host_lock

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Only the reporter writes to the terminal; Prefect's log contains every message.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # nightquant reports an unreachable server once, at the end of a run, not for each event.
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
}
_DRAIN_S = 5.0
_ANSWER_S = 10.0


class ServerGoneError(NightquantError):
    """Prefect's server stopped responding during the flow run."""

    exit_code = 1


def server_gone(error: Exception) -> ServerGoneError:
    """Return an error that explains what to do after Prefect's server has stopped."""
    return ServerGoneError(
        f"Prefect's server at {os.environ.get('PREFECT_API_URL') or _api().url} stopped responding: "
        f"{str(error) or type(error).__name__}.",
        hint="If you started the server yourself, start it again. Then repeat the command. Recorded measurements are "
        "in the store, and finished artifacts are reused.",
    )


@contextmanager
def prefect_api(
    startup_timeout_s: float,
    noted: Callable[[str], None] = lambda text: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[float]:
    """Make a Prefect API available to this process; yield the startup time in seconds."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    began = time.perf_counter()
    process = None
    if configured_api():
        check_reachable()
    else:
        process = _start(startup_timeout_s, noted, meanwhile)
    try:
        yield time.perf_counter() - began
    finally:
        if "prefect" in sys.modules:
            # Let Prefect's background threads finish, because without the server they would retry for 90 s.
            for service in ("prefect.logging.handlers:APILogWorker", "prefect.events.worker:EventsWorker"):
                resolve_name(service).drain_all(timeout=_DRAIN_S)
        if process is not None:
            process.communicate()  # close the server's standard input, which stops the server
            _forget()


def configured_api() -> bool:
    """Return whether the environment or Prefect's active profile configures a server."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    # Import Prefect's settings only if the profiles file may set the URL, because the import takes a second.
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", _home() / "profiles.toml"))
    if not profiles.is_file() or "PREFECT_API_URL" not in profiles.read_text(encoding="utf-8"):
        return False
    return bool(_api().url)


def _api() -> Any:
    return resolve_name("prefect.settings:get_current_settings")().api


def require_api(why: str) -> None:
    """Raise `ConfigurationError` unless a server that outlives this command is configured and answers."""
    if not configured_api():
        raise ConfigurationError(
            f"No Prefect server is configured, but {why}.",
            hint="Start a server (prefect server start) and set PREFECT_API_URL=http://127.0.0.1:4200/api.",
        )
    check_reachable()


def check_reachable() -> None:
    """Raise `ConfigurationError` if the configured server is not responding."""
    api = _api()
    try:
        httpx.get(f"{api.url}/health", timeout=_ANSWER_S, verify=not api.tls_insecure_skip_verify)
    except httpx.TransportError as error:
        raise ConfigurationError(
            f"The Prefect server at {api.url} is not responding: {error}.",
            hint="Start the server (prefect server start), or unset PREFECT_API_URL to let nightquant start a "
            "temporary server.",
        ) from error


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


def _forget() -> None:
    os.environ.pop("PREFECT_API_URL", None)


def _start(timeout_s: float, noted: Callable[[str], None], meanwhile: Callable[[], object]) -> subprocess.Popen[str]:
    try:
        _home().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"Prefect's home folder {_home()} cannot be created: {error.strerror}.",
            hint="Set PREFECT_HOME to a writable folder.",
        ) from error
    package = str(Path(flows.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    # Start one server at a time, because the migration of a new database fails if two servers run it at once.
    with host_lock(
        "prefect-server-start", on_wait=lambda: noted("Waiting for another command's Prefect server to start.")
    ):
        # Open the socket here, so that the URL is known while the server starts.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = subprocess.Popen(
                # ``-P`` prevents modules in the working folder from shadowing nightquant's modules.
                [sys.executable, "-P", "-m", "flows.execution.server_process", str(listener.fileno())],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[listener.fileno()],
                # Protect the server from Control-C, because the flow must still report the end of the run to the
                # server.
                start_new_session=True,
            )
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        os.environ["PREFECT_API_URL"] = url
        try:
            meanwhile()
            wait_for(process, timeout_s, noted)
        except BaseException:  # a starting server does not need a graceful shutdown
            process.kill()
            process.wait()
            _forget()
            raise
    return process


def wait_for(process: subprocess.Popen[str], timeout_s: float, noted: Callable[[str], None]) -> None:
    """Wait until a server prints its port, which it does as soon as it answers."""
    assert process.stdout is not None
    for waited_s in (timeout_s / 2, timeout_s):
        if select.select([process.stdout], [], [], timeout_s / 2)[0]:
            break
        noted(f"Still waiting for Prefect's server after {waited_s:.0f} s.")
    else:
        raise ConfigurationError(
            f"Prefect's server did not start within {timeout_s:.0f} s.",
            hint="Raise NIGHTQUANT_SERVER_STARTUP_TIMEOUT_S, or start your own server (prefect server start) and "
            "set PREFECT_API_URL.",
        )
    if not process.stdout.readline().strip():
        raise ConfigurationError(
            f"Prefect's server exited with code {process.wait()} before it answered.",
            hint="Check the server's messages above, and the database in PREFECT_HOME.",
        )
