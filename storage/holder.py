"""One night at a time on a store: who holds it, and whose night did not come to its end.

The kernel's lock decides: it is free as soon as its holder is dead, however it died. The record beside it only tells
who that was; a holder takes its own away at its end. On an object store, whose nights may be of many hosts, a lease
(`storage.lease`) decides besides.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from storage.errors import NightRunningError
from storage.lease import LeasedError, leased
from storage.local_root import LocalRoot
from storage.locks import file_lock
from storage.root import StoreRoot

_LOCK, _RECORD = "night", "night.json"
# Dead runs that no server knows any more must not pile up.
_REMEMBERED = 20


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
    """A store that this process holds.

    Attributes
    ----------
    dead
        Who held it before, did not come to its end, and was not forgotten since; the latest one last.
    """

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
    except ValidationError:  # it only tells: a night must not fail for it
        return ()
