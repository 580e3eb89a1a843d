"""An S3 server (moto's) in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Serve S3 on a free port of `address` while the block runs; yield the endpoint's URL."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from moto.server import ThreadedMotoServer

    answer, alone = DomainDispatcherApplication.__call__, threading.Lock()

    def one_at_a_time(self: Any, environment: Any, start: Any) -> list[bytes]:
        # S3 decides "only if there is none" and stores in one step; moto in two, between which another request fits.
        with alone:
            return list(answer(self, environment, start))

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells every request
    with patch.object(DomainDispatcherApplication, "__call__", one_at_a_time):
        server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.stop()


@contextmanager
def answering(*faults: str) -> Iterator[list[str]]:
    """Have the server of this process answer with `faults` first, one for each request; yield those still to come.

    A fault is a status line and the code in the answer's body: ``503 Slow Down: SlowDown``. "cut" cuts the body off.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    to_come, answer = list(faults), DomainDispatcherApplication.__call__

    def fail(self: Any, environment: Any, start: Any) -> Any:
        if not to_come:
            return answer(self, environment, start)
        fault = to_come.pop(0)
        if fault == "cut":
            start("200 OK", [("Content-Length", "1000"), ("Content-Type", "application/octet-stream")])
            return [b"only the beginning"]
        status, _, code = fault.partition(": ")
        start(status, [("Content-Type", "application/xml")])
        return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{status}</Message></Error>".encode()]

    with patch.object(DomainDispatcherApplication, "__call__", fail):
        yield to_come


def credentials(endpoint: str) -> dict[str, str]:
    """What a user's environment has for such a server."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": endpoint}
