"""One night at a time on a store: who holds it, and whose night did not come to its end.

The kernel's lock decides: it is free as soon as its holder is dead, however it died. The record beside it only names
the holder, which takes its own record away at its end.

On an object store, whose nights may be of many hosts, a lease decides besides (Gray and Cheriton, "Leases: an efficient
fault-tolerant mechanism for distributed file cache consistency", SOSP 1989). The holder renews an object by conditional
puts while it is alive; one that has not been renewed for `LEASE_S` is anybody's. The store's clock alone decides how
old it is, so that hosts need not agree about the time.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from storage.errors import NightRunningError, StoreError
from storage.local_root import LocalRoot
from storage.locks import file_lock
from storage.root import StoreRoot

_LOG = logging.getLogger(__name__)
_LOCK, _RECORD = "night", "night.json"
# Dead runs that no server knows any more must not pile up.
_REMEMBERED = 20
LEASE_S = 180.0
_RENEW_S = 30.0


@dataclass(frozen=True)
class Holder:
    """A run that holds a store; ``flow_run_id`` is Prefect's, "" outside of a flow run, ``since`` has a time zone.

    ``store`` is filled in by `hold`: in a copy of the store the record means nothing, for the run may be alive.
    """

    run_id: str
    flow_run_id: str
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    store: str = ""

    def describe(self) -> str:
        """Who it is and since when, for a message."""
        return f"run {self.run_id} (process {self.pid} on {self.host}) since {self.since:%Y-%m-%d %H:%M} UTC"


_HOLDERS = TypeAdapter(tuple[Holder, ...])


class HeldStore:
    """A store that this process holds; ``dead`` are earlier holders that did not come to their end, latest last."""

    def __init__(self, records: LocalRoot, holder: Holder, dead: tuple[Holder, ...]) -> None:
        self._records = records
        self._holder = holder
        self.dead = dead[-_REMEMBERED:]
        self._write((*self.dead, holder))

    def forget(self, dead: Holder) -> None:
        """Drop a dead holder: whatever it left has been seen to."""
        self.dead = tuple(each for each in self.dead if each != dead)
        self._write((*self.dead, self._holder))

    def release(self) -> None:
        """Say that the holder came to its end."""
        self._write(self.dead)

    def _write(self, holders: tuple[Holder, ...]) -> None:
        self._records.put(_RECORD, _HOLDERS.dump_json(holders, indent=1))


@contextmanager
def hold(place: StoreRoot | Path | str, holder: Holder) -> Iterator[HeldStore]:
    """Hold a store for one night until the block or the process ends.

    Raises
    ------
    NightRunningError
        Another night holds it; the message says which, and since when.
    StoreError
        The store, or the lock's folder, cannot be used.
    """
    root = StoreRoot.of(place)
    folder = root.lock_folder()
    records = LocalRoot(folder)
    holder = replace(holder, store=root.url)
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(folder / _LOCK, wait=False))
        except BlockingIOError as error:
            raise _running(root, _read(records, root.url)[-1:]) from error
        dead = _read(records, root.url)

        def has_died(content: bytes) -> bool:
            # It held the lock that is held now.
            return _parsed(content, root.url) == dead[-1:] != ()

        content = _HOLDERS.dump_json((holder,))
        try:
            # In a folder, the kernel's lock is enough.
            lease = nullcontext(b"") if root.local else leased(root, f".locks/{_RECORD}", content, has_died)
            before = stack.enter_context(lease)
        except LeasedError as error:
            left = f"If it is dead, the store is free in {error.left_s:.0f} s. "
            raise _running(root, _parsed(error.content, root.url), left) from error
        # Of another host.
        dead += tuple(other for other in _parsed(before, root.url) if other not in dead)
        held = HeldStore(records, holder, dead)
        yield held
        # Not after an error: whoever reports a run's end may have been stopped with it.
        held.release()


def _running(root: StoreRoot, holders: tuple[Holder, ...], hint: str = "") -> NightRunningError:
    who = holders[-1].describe() if holders else "a run that has just begun"
    return NightRunningError(
        f"Another night holds the store {root.url}: {who}.", hint=f"{hint}Wait for its end, or end it, and run again."
    )


def _read(records: LocalRoot, store: str) -> tuple[Holder, ...]:
    try:
        return _parsed(records.read(_RECORD), store)
    except FileNotFoundError:
        return ()


def _parsed(document: bytes, store: str) -> tuple[Holder, ...]:
    try:
        return tuple(each for each in _HOLDERS.validate_json(document) if each.store == store)
    except ValidationError:  # the record only informs: a night must not fail for it
        return ()


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
    renewal = _Renewal(root, name, content, etag)
    renewal.start()
    try:
        yield before
    finally:
        # After an error it stays for `LEASE_S`, with the name of who did not come to an end.
        renewal.ended.set()
    renewal.join()
    if not renewal.is_lost:
        try:
            root.swap(name, b"", renewal.etag)
        except StoreError as error:  # what was held for is done, and the lease ends by itself
            _LOG.warning("the store's lease was not given back: %s", error)


def _take(root: StoreRoot, name: str, content: bytes, is_over: Callable[[bytes], bool]) -> tuple[str, bytes]:
    while True:
        found = root.stamped(name)
        before = _content(found.content) if found else b""
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
    def __init__(self, root: StoreRoot, name: str, content: bytes, etag: str) -> None:
        super().__init__(name="lease", daemon=True)
        self._root, self._name, self._content = root, name, content
        self.etag = etag
        self.ended = threading.Event()
        self.is_lost = False

    def run(self) -> None:
        # The holder goes on whatever goes wrong: what it writes is kept apart by other means.
        while not self.is_lost and not self.ended.wait(_RENEW_S):
            try:
                self._renew()
            except StoreError as error:
                _LOG.warning("the store's lease was not renewed: %s", error)
        if self.is_lost:
            _LOG.warning("the store's lease is lost: another night may run at once")

    def _renew(self) -> None:
        renewed = self._root.swap(self._name, _marked(self._content), self.etag)
        if renewed is None and (found := self._root.stamped(self._name)) and _content(found.content) == self._content:
            renewed = found.etag  # an answer was lost, and the same put was made again
        self.is_lost = renewed is None
        self.etag = renewed or self.etag
