"""A real Prefect server, one for the session; and nothing that outlives its test."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.processes import Command
from tests.flows.site import Site


@pytest.fixture(scope="session")
def prefect_server(migrated_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An ephemeral Prefect API on loopback with a database of its own."""
    # Imported here: it takes a second, and most tests need no server.
    from prefect.testing.utilities import prefect_test_harness

    folder = tmp_path_factory.mktemp("harness")
    shutil.copy(migrated_home / "prefect.db", folder / "prefect-test.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefect.testing.utilities.mkdtemp", lambda: str(folder))
        with prefect_test_harness(server_startup_timeout=300):
            yield


@pytest.fixture(autouse=True)
def nothing_outlives_its_test() -> Iterator[None]:
    """A night that a failed test leaves running would hold the host's benchmark lock and fail its neighbours."""
    yield
    Command.end_all()


@pytest.fixture
def site(migrated_home: Path, tmp_path: Path) -> Iterator[Site]:
    """A Prefect server of a test's own, with nothing on it."""
    shutil.copytree(migrated_home, tmp_path / "prefect")
    site = Site(tmp_path)
    try:
        site.start_server()
        yield site
    finally:
        site.cut_power()


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook on loopback, and what it was sent; ``/broken`` answers 500."""
    received: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", received
    server.shutdown()
    thread.join()
    server.server_close()
