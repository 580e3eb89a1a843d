"""A real HTTP server on loopback that serves one file and misbehaves as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served, and what was asked for.

    ``break_after`` holds for each answer to come the number of bytes after which the connection is cut; ``statuses``
    the status codes to answer with before anything is served.
    """

    content: bytes
    break_after: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    redirect: str = ""
    asked: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve `site` on a free port of this machine and fill in its ``url``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            if site.statuses:
                self._empty(site.statuses.pop(0))
            elif site.redirect:
                self._empty(302, Location=site.redirect)
            else:
                self._serve(site.content)

        def _serve(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: site.break_after.pop(0)] if site.break_after else body)
            self.close_connection = True

        def _empty(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}/weights.bin"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
