"""Downloads of libraries that use urllib, from a real server that fails now and then."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import remote
from storage.remote import Broken, with_retries
from tests.storage.http_server import Site, serving

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(CONTENT)) as running:
        yield running


def get(url: str) -> bytes:
    """Download as torchvision does: whatever goes wrong becomes a text, and length and checksum are looked at last."""
    try:
        with urllib.request.urlopen(url) as response:
            content: bytes = response.read(10**7)
    except OSError as error:
        text = f"Error downloading: {error}"
    else:
        if content == CONTENT:
            return content
        text = "File not found or corrupted."
    raise RuntimeError(text)


def test_a_busy_server_is_asked_again(site: Site) -> None:
    site.statuses = [503, 429]
    assert with_retries(lambda: get(site.url), first_wait_s=0) == CONTENT
    assert len(site.asked) == 3


def test_a_body_that_was_cut_short_is_downloaded_again(site: Site) -> None:
    site.break_after = [1000]
    assert with_retries(lambda: get(site.url), first_wait_s=0) == CONTENT
    assert len(site.asked) == 2


def test_a_server_that_stays_busy_is_given_up(site: Site) -> None:
    site.statuses = [503] * 10
    with pytest.raises(Broken, match=r"503.*tried 3 times"):
        with_retries(lambda: get(site.url), retries=2, first_wait_s=0)
    assert len(site.asked) == 3


@pytest.mark.slow
def test_a_full_disk_is_not_tried_again(site: Site) -> None:
    def write() -> None:
        with urllib.request.urlopen(site.url) as response, Path("/dev/full").open("wb") as full:
            full.write(response.read(10))

    with pytest.raises(OSError, match="No space left"):
        with_retries(write, first_wait_s=0)
    assert len(site.asked) == 1


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(Broken, match="timed out"):
            with_retries(lambda: get(url), retries=1, first_wait_s=0)
