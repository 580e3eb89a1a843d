"""The Prefect API that a command uses: the configured server, or one of its own for as long as it runs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import psutil

import flows
from storage.errors import ConfigurationError, NightquantError
from storage.locks import host_lock

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The run log keeps every line; the terminal is the reporter's, which says the same better.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # A server that is away is reported once, at the end, not for each event that it does not take.
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
}
# The process of a command's own server, as the flow knows it.
_OWN_SERVER = "NIGHTQUANT_OWN_SERVER_PID"
_DRAIN_S = 5.0
_ANSWER_S = 10.0
# A server that computes for less than this share of the time is not starting, but waiting for something.
_AT_WORK = 0.01
_PATIENCE = 10


class ServerGoneError(NightquantError):
    """Prefect's server stopped answering while the flow ran."""

    exit_code = 1


def server_gone(error: Exception) -> ServerGoneError:
    """Say what to do when the server is gone."""
    return ServerGoneError(
        f"Prefect's server {os.environ.get('PREFECT_API_URL', '')} is gone: {str(error) or type(error).__name__}.",
        hint="Start it again and repeat the command: what was measured is in the store, and what was prepared is found "
        "by its digest.",
    )


@contextmanager
def prefect_api(startup_timeout_s: float, noted: Callable[[str], None] = lambda text: None) -> Iterator[float]:
    """Make a Prefect API available to this process; yield the seconds that took.

    Must be entered before Prefect is imported, since Prefect reads its settings from the environment then. If
    ``PREFECT_API_URL`` is set, in the environment or in the active profile, that server is used; otherwise one is
    started for this command alone and stopped with it, however the command ends.

    Parameters
    ----------
    startup_timeout_s
        How long its own server may take to start, in seconds; up to ten times as long while it is at work.
    noted
        Is told what is waited for, where that takes long.

    Raises
    ------
    ConfigurationError
        The server did not start, or the configured one does not answer.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    began = time.perf_counter()
    process = None
    if configured_api():
        check_reachable()
    else:
        process = _start(startup_timeout_s, noted)
    try:
        yield time.perf_counter() - began
    finally:
        if "prefect" in sys.modules:
            # Prefect's background threads finish first: without their server they would retry for a minute and a half.
            for service in ("prefect.logging.handlers:APILogWorker", "prefect.events.worker:EventsWorker"):
                resolve_name(service).drain_all(timeout=_DRAIN_S)
        if process is not None:
            process.communicate()  # closes the server's standard input, which ends it
            for name in ("PREFECT_API_URL", _OWN_SERVER):
                os.environ.pop(name, None)


def configured_api() -> bool:
    """Whether the environment or Prefect's active profile names a server."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    # Reading a profile needs Prefect's settings, which take a second to import: only if there is a profiles file.
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", _home() / "profiles.toml"))
    if not profiles.is_file() or "PREFECT_API_URL" not in profiles.read_text(encoding="utf-8"):
        return False
    return bool(_api().url)


def _api() -> Any:
    return resolve_name("prefect.settings:get_current_settings")().api


def require_api(why: str) -> None:
    """Refuse, with a `ConfigurationError`, to go on without a server that outlives this command."""
    if not configured_api():
        raise ConfigurationError(
            f"No Prefect server is configured: {why}.",
            hint="Start one (prefect server start) and set PREFECT_API_URL=http://127.0.0.1:4200/api.",
        )
    check_reachable()


def check_reachable() -> None:
    """Refuse, with a `ConfigurationError`, to go on if the configured server does not answer."""
    api = _api()
    try:
        httpx.get(f"{api.url}/health", timeout=_ANSWER_S, verify=not api.tls_insecure_skip_verify)
    except httpx.TransportError as error:
        raise ConfigurationError(
            f"Prefect's server {api.url} does not answer: {error}.",
            hint="Start it (prefect server start), or unset PREFECT_API_URL: the command then starts its own.",
        ) from error


def own_server_died() -> bool:
    """Return whether this command's own server is dead: nobody starts it again, and each call would try for a minute.

    A configured server may be on its way back.
    """
    pid = os.environ.get(_OWN_SERVER)
    try:
        return pid is not None and psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


def _start(timeout_s: float, noted: Callable[[str], None]) -> subprocess.Popen[str]:
    try:
        _home().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"Prefect's home {_home()} cannot be written: {error.strerror}.",
            hint="Set PREFECT_HOME to a folder that can.",
        ) from error
    package = str(Path(flows.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    # One at a time: two servers that migrate a fresh database at once break each other.
    with host_lock(
        "prefect-server-start", on_wait=lambda: noted("Another command's server starts; this one's is next.")
    ):
        process = subprocess.Popen(
            # -P: a module of the working folder must not be taken for one of ours.
            [sys.executable, "-P", "-m", "flows.execution.server_process"],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Control-C at the terminal goes to the whole process group; the flow still reports its end to the server.
            start_new_session=True,
        )
        try:
            port = port_of(process, timeout_s, noted)
        except BaseException:  # a server that is still starting needs no soft end
            process.kill()
            process.wait()
            raise
    os.environ |= {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", _OWN_SERVER: str(process.pid)}
    return process


def port_of(process: subprocess.Popen[str], timeout_s: float, noted: Callable[[str], None]) -> str:
    """Return the port that a server prints once it answers; wait longer than `timeout_s` while its process is at work.

    Raises
    ------
    ConfigurationError
        It ended, or did nothing, or did not answer in ten times that long.
    """
    assert process.stdout is not None
    began = time.monotonic()
    busy_s, wait_s = 0.0, timeout_s
    while not select.select([process.stdout], [], [], wait_s)[0]:
        used_s = sum(psutil.Process(process.pid).cpu_times()[:2])
        waited_s = time.monotonic() - began
        if waited_s > _PATIENCE * timeout_s or used_s < busy_s + _AT_WORK * wait_s:
            raise ConfigurationError(
                f"Prefect's server did not start within {waited_s:.0f} s; its process computed for {used_s:.0f} s.",
                hint="Give it more time with NIGHTQUANT_SERVER_STARTUP_TIMEOUT_S, or start a server of your own "
                "(prefect server start) and set PREFECT_API_URL.",
            )
        noted(
            f"Prefect's server does not answer after {waited_s:.0f} s. Its process is at work, {used_s:.0f} s so far, "
            f"and {os.getloadavg()[0]:.1f} processes want {os.cpu_count()} processors: waiting on."
        )
        busy_s, wait_s = used_s, timeout_s / 3
    if port := process.stdout.readline().strip():
        return port
    raise ConfigurationError(
        f"Prefect's server ended with exit code {process.wait()} before it answered.",
        hint="Its own messages are above; PREFECT_HOME holds its database.",
    )
