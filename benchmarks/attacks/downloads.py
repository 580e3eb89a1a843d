"""Attacks by an HTTP server that weights or data come from."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.attacks.outcome import Outcome, mutated, outcome_of
from storage.transfer import fetch

_FILE = bytes(range(256)) * 8
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Content-Length", (str(len(_FILE)), "0", "9" * 5000, "-1", "²", "7")),
    ("Content-Range", (f"bytes 0-2047/{len(_FILE)}", "bytes 9-3/2", "bytes */5", "9" * 5000, "x")),
    ("Transfer-Encoding", ("chunked", "gzip", "x")),
    ("Content-Encoding", ("gzip", "br")),
    (
        "Location",
        ("file:///etc/passwd", "http://example.org/", "http://[bad", "ftp://x/", "//", "http://127.0.0.1:99999/"),
    ),
    ("Set-Cookie", ("a=b; expires=x", "=", "\x01")),
)
_STATUSES = ("200 OK", "206 Partial Content", "302 Found", "416 No", "503 Busy", "404 None", "999 x", "99999", "", "²")


def downloads(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Answers of an HTTP server: odd status lines, lengths, ranges, encodings, redirects and bodies."""
    answers: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the listener was closed
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(answers.pop() if answers else b"HTTP/1.1 404 None\r\n\r\n")
                except OSError:  # the client has had enough
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/weights.bin"
        for _ in range(tries):
            answers[:] = [_answer(chance) for _ in range(chance.randint(1, 3))]
            yield outcome_of(lambda: _downloaded(uri, folder))
        listener.shutdown(socket.SHUT_RDWR)


def _answer(chance: random.Random) -> bytes:
    chosen = [(name, chance.choice(values)) for name, values in _HEADERS if chance.random() < 0.4]
    head = "\r\n".join([f"HTTP/1.1 {chance.choice(_STATUSES)}", *(f"{name}: {value}" for name, value in chosen)])
    body = chance.choice((_FILE, _FILE[: chance.randrange(2048)], bytes(10_000), b"", b"5\r\nhello\r\n0\r\n\r\n"))
    return mutated(head.encode(), chance, changes=chance.choice((0, 0, 2))) + b"\r\n\r\n" + body


def _downloaded(uri: str, folder: Path) -> None:
    digest = hashlib.sha256(_FILE).hexdigest()
    with fetch(uri, folder, sha256=digest) as source:
        content = source.path().read_bytes()
    if content != _FILE or sum(path.stat().st_size for path in folder.iterdir()) > 4096:
        raise AssertionError("another file, or a longer one, was kept")
