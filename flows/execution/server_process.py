"""The short-lived Prefect server for one command: a process that never outlives its parent."""

# Prefect's own ephemeral server keeps running if the flow's process is killed. This server reads from a pipe, which
# closes when the parent exits.

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

_GRACE_S = 5.0


class _Server(uvicorn.Server):
    """Server that prints its port when it is ready, and stops at the end of standard input."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self._port = port
        threading.Thread(target=self._stop_with_parent, daemon=True).start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ignore signals to the process group, because the flow must still report the end of the run to the server."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(f"{self._port}\n")
            sys.stdout.flush()

    def _stop_with_parent(self) -> None:
        sys.stdin.buffer.read()
        self.should_exit = True
        # Force the exit if the server cannot shut down in time, for example because a client stays connected.
        threading.Timer(_GRACE_S, os._exit, args=(0,)).start()


def main() -> None:
    """Serve Prefect's API, and write the port number to standard output when the server is ready."""
    os.environ.update(PREFECT__SERVER_EPHEMERAL="1", PREFECT__SERVER_FINAL="1", PREFECT_UI_ENABLED="0")
    passed = sys.argv[1:]
    listener = socket.socket(fileno=int(passed[0])) if passed else socket.create_server(("127.0.0.1", 0))
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
    _Server(config, listener.getsockname()[1]).run(sockets=[listener])
    os._exit(0)


if __name__ == "__main__":
    main()
