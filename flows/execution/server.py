"""The Prefect API that a command uses: the configured server, or a server that runs only as long as the command."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import uvicorn

import flows
from storage.errors import ConfigurationError, NightquantError
from storage.locks import host_lock

if TYPE_CHECKING:
    from prefect.settings.models.api import APISettings

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Only the reporter writes to the terminal; Prefect's log contains every message.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # nightquant reports an unreachable server once, at the end of a run, not for each event.
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
}
_STARTUP_S = 300.0
_DRAIN_S = 5.0
_ANSWER_S = 10.0
_GRACE_S = 5.0


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
def prefect_api(meanwhile: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Make a Prefect API available to this process; call `meanwhile` during the start."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    process = None
    if configured_api():
        check_reachable()
    else:
        process = _start(meanwhile)
    try:
        yield
    finally:
        if "prefect" in sys.modules:
            from prefect.events.worker import EventsWorker
            from prefect.logging.handlers import APILogWorker

            # Let Prefect's background threads finish, because without the server they would retry for 90 s.
            APILogWorker.drain_all(timeout=_DRAIN_S)
            EventsWorker.drain_all(timeout=_DRAIN_S)
        if process is not None:
            process.communicate()  # close the server's standard input, which stops the server
            os.environ.pop("PREFECT_API_URL", None)


def configured_api() -> bool:
    """Return whether the environment or Prefect's active profile configures a server."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    # Import Prefect's settings only if the profiles file may set the URL, because the import takes a second.
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    if not profiles.is_file() or "PREFECT_API_URL" not in profiles.read_text(encoding="utf-8"):
        return False
    return bool(_api().url)


def _api() -> APISettings:
    from prefect.settings import get_current_settings

    return get_current_settings().api


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


def _start(meanwhile: Callable[[], object]) -> subprocess.Popen[str]:
    package = str(Path(flows.__path__[0]).parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    # Start one server at a time, because the migration of a new database fails if two servers run it at once.
    with host_lock("prefect-server-start"):
        # Open the socket here, so that the URL is known while the server starts.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = subprocess.Popen(
                # ``-P`` prevents modules in the working folder from shadowing nightquant's modules.
                [sys.executable, "-P", "-m", "flows.execution.server", str(listener.fileno())],
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
            _wait_for(process)
        except BaseException:  # a starting server does not need a graceful shutdown
            process.kill()
            process.wait()
            os.environ.pop("PREFECT_API_URL", None)
            raise
    return process


def _wait_for(process: subprocess.Popen[str]) -> None:
    """Wait until a server prints a line, which it does as soon as it answers."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], _STARTUP_S)[0]:
        raise ConfigurationError(
            f"Prefect's server did not start within {_STARTUP_S:.0f} s.",
            hint="Start your own server (prefect server start) and set PREFECT_API_URL.",
        )
    if not process.stdout.readline().strip():
        raise ConfigurationError(
            f"Prefect's server exited with code {process.wait()} before it answered.",
            hint="Check the server's messages above, and the database in PREFECT_HOME.",
        )


class _Server(uvicorn.Server):
    """Server that prints a line when it is ready, and stops at the end of standard input."""

    # Prefect's own ephemeral server keeps running if the flow's process is killed.

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ignore signals to the process group, because the flow must still report the end of the run to the server."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        threading.Thread(target=self._stop_with_parent, daemon=True).start()
        await super().startup(sockets)
        if self.started:
            sys.stdout.write("ready\n")
            sys.stdout.flush()

    def _stop_with_parent(self) -> None:
        sys.stdin.buffer.read()
        self.should_exit = True
        # Force the exit if the server cannot shut down in time, for example because a client stays connected.
        threading.Timer(_GRACE_S, os._exit, args=(0,)).start()


def _serve(listener: socket.socket) -> None:
    """Serve Prefect's API in a process that never outlives its parent."""
    os.environ.update(PREFECT__SERVER_EPHEMERAL="1", PREFECT__SERVER_FINAL="1", PREFECT_UI_ENABLED="0")
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        # Prefect's client retries a write that SQLite refused, so its traceback would only alarm.
        log_level="critical",
        lifespan="on",
        timeout_graceful_shutdown=2,
        # Prefect's client closes idle connections after 25 s, before this server does.
        timeout_keep_alive=60,
    )
    _Server(config).run(sockets=[listener])
    os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
