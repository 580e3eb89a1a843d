"""One night at a time on a store: who holds it, and whose night did not come to its end.

The kernel's lock decides: it is free as soon as its holder is dead, however it died. The record beside it only tells
who that was; a holder takes its own away at its end.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from storage.errors import NightRunningError
from storage.locks import file_lock
from storage.root import LocalRoot, StoreRoot

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

    def __init__(self, folder: Path, holder: Holder) -> None:
        self._records = LocalRoot(folder)
        self._holder = holder
        self.dead = _read(self._records, holder.store)[-_REMEMBERED:]
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

    On an object store it keeps out the nights of this host and user only.

    Raises
    ------
    NightRunningError
        Another night holds it; the message says which, and since when.
    StoreError
        The lock's folder cannot be written.
    """
    root = StoreRoot.of(place)
    folder = root.lock_folder()
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(folder / _LOCK, wait=False))
        except BlockingIOError as error:
            records = _read(LocalRoot(folder), root.url)
            who = records[-1].describe() if records else "a run that has just begun"
            raise NightRunningError(
                f"Another night holds the store {root.url}: {who}.", hint="Wait for its end, or end it, and run again."
            ) from error
        held = HeldStore(folder, replace(holder, store=root.url))
        yield held
        # Not after an error: whoever reports a run's end may have been stopped with it.
        held.release()


def _read(records: LocalRoot, store: str) -> tuple[Holder, ...]:
    try:
        return tuple(each for each in _HOLDERS.validate_json(records.read(_RECORD)) if each.store == store)
    except (FileNotFoundError, ValidationError):  # it only tells: a night must not fail for it
        return ()
