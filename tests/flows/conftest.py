"""A real Prefect server, one for the session; and nothing that outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows.processes import Command


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """An ephemeral Prefect API on loopback with a database of its own."""
    # Imported here: it takes a second, and most tests need no server.
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=90):
        yield


@pytest.fixture(autouse=True)
def nothing_outlives_its_test() -> Iterator[None]:
    """A night that a failed test leaves running would hold the host's benchmark lock and fail its neighbours."""
    yield
    Command.end_all()
