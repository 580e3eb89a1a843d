"""The short-lived Prefect server for one command: a process that never outlives its parent.

Prefect's own ephemeral server keeps running if the flow's process is killed. This server reads from a pipe, and only
the parent has the pipe's write end. When the parent exits, the pipe closes and the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from pkgutil import resolve_name

import uvicorn

# Types of the ASGI interface, named as in the ASGI specification (asgi.readthedocs.io).
Message = MutableMapping[str, object]
Scope = Message
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
_GRACE_S = 5.0
_PAUSES_S = (0.02, 0.04, 0.08, 0.16, 0.32)


class RetryLocked:
    """ASGI middleware that retries a write request up to five times within a second if the response is 503.

    SQLite rejects a transaction if the database has changed since the transaction's first read. Prefect's server then
    responds with 503, and Prefect's client waits two seconds before retrying. A rejected transaction is rolled back,
    so a retry is safe.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._application(scope, receive, send)
            return
        request = [await receive()]
        while request[-1]["type"] == "http.request" and request[-1].get("more_body", False):
            request.append(await receive())
        for pause_s in (*_PAUSES_S, None):
            # Copy the scope because routers write into it.
            answer, failure = await self._answer(dict(scope), _replay(request, receive))
            is_locked = bool(answer) and answer[0].get("status") == HTTPStatus.SERVICE_UNAVAILABLE
            if pause_s is None or not is_locked:
                break
            await asyncio.sleep(pause_s)
        for message in answer:
            await send(message)
        # The client retries after status 503. If the error were also raised, the terminal would show a traceback.
        if failure is not None and not is_locked:
            raise failure

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[list[Message], Exception | None]:
        """Return the application's response, and the error that the application raised (None if there was no error)."""
        answer: list[Message] = []

        async def collect(message: Message) -> None:
            answer.append(message)

        try:
            await self._application(scope, receive, collect)
        except Exception as failure:  # noqa: BLE001 - the caller raises the error after sending the response
            return answer, failure
        return answer, None


def _replay(request: list[Message], receive: Receive) -> Receive:
    left = iter(request)

    async def replayed() -> Message:
        message = next(left, None)
        return message if message is not None else await receive()

    return replayed


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
        # Suppress the tracebacks that uvicorn would log for cancelled requests.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        # Force the exit if the server cannot shut down in time, for example because a client stays connected.
        threading.Timer(_GRACE_S, os._exit, args=(0,)).start()


def _application() -> ASGIApp:
    return RetryLocked(resolve_name("prefect.server.api.server:create_app")())


def main() -> None:
    """Serve Prefect's API, and write the port number to standard output when the server is ready.

    The first argument is the file descriptor of a listening socket. Without an argument, the server opens a loopback
    port.
    """
    os.environ.update(PREFECT__SERVER_EPHEMERAL="1", PREFECT__SERVER_FINAL="1", PREFECT_UI_ENABLED="0")
    passed = sys.argv[1:]
    listener = socket.socket(fileno=int(passed[0])) if passed else socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        _application,
        factory=True,
        log_level="error",
        lifespan="on",
        timeout_graceful_shutdown=2,
        # Prefect's client closes idle connections after 25 s, before this server does.
        timeout_keep_alive=60,
    )
    _Server(config, listener.getsockname()[1]).run(sockets=[listener])
    os._exit(0)


if __name__ == "__main__":
    main()
