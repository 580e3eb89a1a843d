"""A lease on an object store: one holder at a time among all hosts, by conditional puts.

Gray and Cheriton, *Leases: an efficient fault-tolerant mechanism for distributed file cache consistency*, SOSP 1989.
The holder renews an object while it is alive; one that has not been renewed for `LEASE_S` is anybody's. How old it is,
the store's clock alone decides, so that hosts need not agree about the time.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.errors import StoreError
from storage.root import StoreRoot

_LOG = logging.getLogger(__name__)
LEASE_S = 180.0
_RENEW_S = 30.0
_FREE = b""


class LeasedError(Exception):
    """Somebody else holds the lease: what they wrote into it, and in how many seconds it ends unless they renew it."""

    def __init__(self, content: bytes, left_s: float) -> None:
        super().__init__(f"it ends in {left_s:.0f} s unless it is renewed")
        self.content = content
        self.left_s = left_s


@contextmanager
def leased(root: StoreRoot, name: str, content: bytes, is_over: Callable[[bytes], bool]) -> Iterator[bytes]:
    """Hold the lease `name` while the block runs; yield what a holder that did not come to its end had written, or b"".

    Parameters
    ----------
    content
        What others read of this holder, in one line.
    is_over
        Whether the holder that wrote this is known to be dead, so that nobody need wait until its lease ends.

    Raises
    ------
    LeasedError
        Somebody else holds it.
    StoreError
        The store cannot be used.
    """
    etag, before = _take(root, name, content, is_over)
    ended = threading.Event()
    renewal = _Renewal(root, name, content, etag, ended)
    renewal.start()
    try:
        yield before
    except BaseException:
        # It stays for `LEASE_S`, with the name of who did not come to an end.
        ended.set()
        raise
    ended.set()
    renewal.join()
    if not renewal.is_lost:
        try:
            root.swap(name, _FREE, renewal.etag)
        except StoreError as error:  # what was held for is done, and the lease ends by itself
            _LOG.warning("the store's lease was not given back: %s", error)


def _take(root: StoreRoot, name: str, content: bytes, is_over: Callable[[bytes], bool]) -> tuple[str, bytes]:
    while True:
        found = root.stamped(name)
        before = _content(found.content) if found else _FREE
        if found and before and found.age_s < LEASE_S and not is_over(before):
            raise LeasedError(before, LEASE_S - found.age_s)
        # Another one may have been quicker: its lease is then found, and is young.
        if (etag := root.swap(name, _marked(content), found.etag if found else None)) is not None:
            return etag, before


def _marked(content: bytes) -> bytes:
    """New bytes each time: a store may tell versions apart by their bytes alone."""
    return uuid.uuid4().hex.encode() + b"\n" + content


def _content(marked: bytes) -> bytes:
    return marked.partition(b"\n")[2]


class _Renewal(threading.Thread):
    """Renews a lease until it ends or is lost."""

    def __init__(self, root: StoreRoot, name: str, content: bytes, etag: str, ended: threading.Event) -> None:
        super().__init__(name="lease", daemon=True)
        self._root, self._name, self._content, self._ended = root, name, content, ended
        self.etag = etag
        self.is_lost = False

    def run(self) -> None:
        """Renew, and say what goes wrong: the holder goes on, for what it writes is kept apart by other means."""
        while not self._ended.wait(_RENEW_S):
            try:
                self._renew()
            except StoreError as error:
                _LOG.warning("the store's lease was not renewed: %s", error)
            if self.is_lost:
                _LOG.warning("the store's lease is lost: another night may run at once")
                return

    def _renew(self) -> None:
        renewed = self._root.swap(self._name, _marked(self._content), self.etag)
        if renewed is None and (found := self._root.stamped(self._name)) and _content(found.content) == self._content:
            renewed = found.etag  # an answer was lost, and the same put was made again
        self.is_lost = renewed is None
        self.etag = renewed or self.etag
