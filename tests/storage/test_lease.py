"""A lease on an object store: who gets it, who keeps it, and who has lost it."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage.lease import LeasedError, leased
from storage.object_root import ObjectRoot

NAME = ".locks/night.json"


def _nobody_is_dead(_: bytes) -> bool:
    return False


@pytest.mark.slow
def test_of_those_who_ask_at_once_one_gets_it(s3_store: str) -> None:
    def ask(number: int) -> bool:
        try:
            with leased(ObjectRoot(s3_store), NAME, str(number).encode(), _nobody_is_dead):
                all_have_asked.wait(60)
        except LeasedError:
            refused.release()
            return False
        return True

    refused, all_have_asked = threading.Semaphore(0), threading.Event()
    with ThreadPoolExecutor(8) as threads:
        asked = threads.map(ask, range(8))
        assert all(refused.acquire(timeout=60) for _ in range(7))
        all_have_asked.set()
        assert sum(asked) == 1


@pytest.mark.slow
def test_whoever_renews_it_keeps_it(s3_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.lease.LEASE_S", 6.0)  # on a machine that others load, a renewal may take seconds
    monkeypatch.setattr("storage.lease._RENEW_S", 0.2)
    root = ObjectRoot(s3_store)
    with leased(root, NAME, b"first", _nobody_is_dead) as before:
        assert before == b""
        time.sleep(7.5)
        with pytest.raises(LeasedError) as refused:
            leased(root, NAME, b"second", _nobody_is_dead).__enter__()
        assert refused.value.content == b"first"
    with leased(root, NAME, b"third", _nobody_is_dead) as before:
        assert before == b""


@pytest.mark.slow
def test_who_has_lost_it_says_so_and_takes_nothing_from_the_next(
    s3_store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("storage.lease._RENEW_S", 0.2)
    root = ObjectRoot(s3_store)
    with caplog.at_level(logging.WARNING), leased(root, NAME, b"first", _nobody_is_dead):
        # The next one takes the first for dead.
        second = leased(root, NAME, b"second", lambda _: True)
        assert second.__enter__() == b"first"
        deadline = time.monotonic() + 60
        while "is lost" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "is lost" in caplog.text
    found = root.stamped(NAME)
    assert found is not None
    assert found.content.endswith(b"second")
    second.__exit__(None, None, None)
