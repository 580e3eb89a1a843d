"""The short-lived Prefect server of one command, as a process that never outlives its parent.

Prefect's own ephemeral server is left behind when the flow's process is killed. This one holds the read end of a pipe
whose write end only the parent has: whatever ends the parent closes the pipe, and the server stops.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from flows.locked_database import AskAgain

_GRACE_S = 5.0


class _Server(uvicorn.Server):
    """Tells its port once it answers, and stops when standard input ends."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self._port = port
        threading.Thread(target=self._stop_with_parent, daemon=True).start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ignore signals that a whole group gets: the flow reports its end here, and then closes the pipe."""
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
        # What is still open then is cancelled; uvicorn would tell of it as an error, with a traceback.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        # A server that cannot finish in time (a client that holds its connection open, say) is ended all the same.
        threading.Timer(_GRACE_S, os._exit, args=(0,)).start()


def _application() -> AskAgain:
    from prefect.server.api.server import create_app

    return AskAgain(create_app())


def main() -> None:
    """Serve Prefect's API on a free loopback port and write that port to standard output once it answers."""
    os.environ.update(PREFECT__SERVER_EPHEMERAL="1", PREFECT__SERVER_FINAL="1", PREFECT_UI_ENABLED="0")
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        _application,
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=2,
        # Longer than the 25 s for which Prefect's client keeps idle connections.
        timeout_keep_alive=60,
    )
    _Server(config, listener.getsockname()[1]).run(sockets=[listener])
    os._exit(0)


if __name__ == "__main__":
    main()
