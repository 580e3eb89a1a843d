"""Allow only one run at a time to use a store, and find and record runs that died.

The kernel's lock decides which run may use a store, because the kernel releases the lock when its holder dies. The
record next to the lock only names the holder, and a holder that ends normally removes its own entry.

On an object store, which many hosts may use, the holder also needs a lease. See Gray and Cheriton, "Leases: an
efficient fault-tolerant mechanism for distributed file cache consistency", SOSP 1989. A running holder renews the lease
by writing an object with conditional puts. A lease expires if it is not renewed for `LEASE_S` seconds. Only the store's
clock measures a lease's age, so that the hosts' clocks need not agree.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import Timeout
from pydantic import TypeAdapter, ValidationError

from storage.errors import NightRunningError, StoreError
from storage.local_root import LocalRoot
from storage.locks import file_lock
from storage.results import Row
from storage.results.layout import find_files, read_rows
from storage.results.tables import MEASUREMENTS, RUNS
from storage.results.writer import ResultsStore
from storage.root import StoreRoot

_LOG = logging.getLogger(__name__)
_LOCK, _RECORD = "night", "night.json"
# Without a limit, runs that Prefect's server deleted would stay here forever.
_REMEMBERED = 20
LEASE_S = 180.0
_RENEW_S = 30.0


@dataclass(frozen=True)
class Holder:
    """A run that locks a store. ``flow_run_id`` is ``""`` outside a Prefect flow run; ``since`` is timezone-aware."""

    run_id: str
    flow_run_id: str
    host: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    def describe(self) -> str:
        """Describe the run, its process and its start time for a message."""
        return f"run {self.run_id} (process {self.pid} on {self.host}) since {self.since:%Y-%m-%d %H:%M} UTC"


_HOLDERS = TypeAdapter(tuple[Holder, ...])


class HeldStore:
    """A store that this process has locked; ``dead`` lists earlier holders that died, oldest first."""

    def __init__(self, records: LocalRoot, holder: Holder, dead: tuple[Holder, ...]) -> None:
        self._records = records
        self._holder = holder
        self.dead = dead[-_REMEMBERED:]
        self.write(holder)

    def forget(self, dead: Holder) -> None:
        """Remove a dead holder from the record after its run has been recorded."""
        self.dead = tuple(holder for holder in self.dead if holder != dead)
        self.write(self._holder)

    def write(self, *holder: Holder) -> None:
        """Record the dead holders, and the holder unless it has ended."""
        holders = (*self.dead, *holder)
        self._records.put(_RECORD, _HOLDERS.dump_json(holders, indent=1))


@contextmanager
def hold(place: StoreRoot | Path | str, holder: Holder) -> Iterator[HeldStore]:
    """Lock a store for one run until the block or the process ends; raise `NightRunningError` if it is in use."""
    root = StoreRoot.of(place)
    folder = root.lock_folder()
    records = LocalRoot(folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(folder / _LOCK, wait=False))
        except Timeout as error:
            raise _running(root, _read(records)[-1:]) from error
        dead = _read(records)

        def has_died(content: bytes) -> bool:
            # This process holds the kernel lock, so the previous holder on this host is dead.
            return _parsed(content) == dead[-1:] != ()

        content = _HOLDERS.dump_json((holder,))
        try:
            # A local store needs only the kernel's lock.
            lease = nullcontext(b"") if root.local else leased(root, f".locks/{_RECORD}", content, has_died)
            before = stack.enter_context(lease)
        except LeasedError as error:
            raise _running(root, _parsed(error.content), str(error)) from error
        # The lease may name a dead holder on another host.
        dead += tuple(other for other in _parsed(before) if other not in dead)
        held = HeldStore(records, holder, dead)
        yield held
        # After an error, keep the entry, because the run's end may not have been reported.
        held.write()


def _running(root: StoreRoot, holders: tuple[Holder, ...], hint: str = "") -> NightRunningError:
    who = holders[-1].describe() if holders else "a run that has just begun"
    return NightRunningError(
        f"Another run is using the store {root.url}: {who}.",
        hint=f"{hint}Wait until that run ends, or stop it, and then try again.",
    )


def _read(records: LocalRoot) -> tuple[Holder, ...]:
    try:
        return _parsed(records.read(_RECORD))
    except FileNotFoundError:
        return ()


def _parsed(document: bytes) -> tuple[Holder, ...]:
    try:
        return _HOLDERS.validate_json(document)
    except ValidationError:  # a damaged record must not stop a run
        return ()


def record_dead_run(place: StoreRoot | Path | str, dead: Holder) -> bool:
    """Add a row to ``runs`` for a run that measured candidates and then died; return whether a row was added."""
    root = StoreRoot.of(place)
    measured, published = _measured(root, dead.run_id)
    if not measured or dead.run_id in find_files(root, RUNS).names:
        return False
    tonight = [row for row in measured if row["setting"] != "current"]
    status = {(row["workload"], row["recipe"], row["runtime"]): row["status"] for row in tonight}
    row: Row = {
        "run_id": dead.run_id,
        "night": measured[0]["night"],
        "started_at": dead.since,
        # The run's end is unknown, so use the time when the run last published measurements.
        "finished_at": datetime.fromtimestamp(published, UTC),
        "status": "failed",
        "profile": measured[0]["profile"],
        "workloads": len({row["workload"] for row in measured}),
        "candidates_ok": sum(outcome == "ok" for outcome in status.values()),
        "candidates_failed": sum(outcome == "failed" for outcome in status.values()),
        "fingerprint": next((row["fingerprint"] for row in measured if row["fingerprint"]), None),
        "message": f"the run died: {dead.describe()}; the next run recorded this row",
    }
    ResultsStore(root).append("runs", [row], dead.run_id, datetime.now(UTC))
    return True


def _measured(root: StoreRoot, run_id: str) -> tuple[list[dict[str, Any]], float]:
    """Return a run's rows of ``measurements``, and the POSIX time at which the last of these rows was published."""
    entries = find_files(root, MEASUREMENTS).files_of(run_id)
    rows: list[dict[str, Any]] = []
    for entry in entries:
        rows += [row for row in read_rows(root, MEASUREMENTS, entry.name).to_pylist() if row["run_id"] == run_id]
    return rows, max((entry.modified for entry in entries), default=0.0)


class LeasedError(Exception):
    """Another process, whose record is `content`, holds the lease."""

    def __init__(self, content: bytes, left_s: float) -> None:
        super().__init__(f"If that run is dead, the store is free in {left_s:.0f} s. ")
        self.content = content


@contextmanager
def leased(root: StoreRoot, name: str, content: bytes, is_over: Callable[[bytes], bool]) -> Iterator[bytes]:
    """Hold the lease `name` with the record `content`; yield the record of a dead holder, or ``b""``.

    The lease is also free if `is_over` returns that the holder with a given record is dead.
    """
    etag, before = _take(root, name, content, is_over)
    renewal = _Renewal(root, name, content, etag)
    renewal.start()
    try:
        yield before
    finally:
        # After an error, the lease remains for `LEASE_S` seconds and names the dead holder.
        renewal.ended.set()
    renewal.join()
    if not renewal.is_lost:
        try:
            root.swap(name, b"", renewal.etag)
        except StoreError as error:  # the work is done, and the lease expires by itself
            _LOG.warning("the store's lease could not be released, and expires by itself: %s", error)


def _take(root: StoreRoot, name: str, content: bytes, is_over: Callable[[bytes], bool]) -> tuple[str, bytes]:
    while True:
        current = root.stamped(name)
        before = _content(current.content) if current else b""
        if current and before and current.age_s < LEASE_S and not is_over(before):
            raise LeasedError(before, LEASE_S - current.age_s)
        # If another process takes the lease first, the next iteration reads that process's lease.
        if (etag := root.swap(name, _marked(content), current.etag if current else None)) is not None:
            return etag, before


def _marked(content: bytes) -> bytes:
    """Add a random line, because some stores cannot distinguish two versions of a file with identical bytes."""
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
        # A run that loses the lease continues, because two runs can safely write at the same time.
        while not self.is_lost and not self.ended.wait(_RENEW_S):
            try:
                self._renew()
            except StoreError as error:
                _LOG.warning("the store's lease could not be renewed: %s", error)
        if self.is_lost:
            _LOG.warning("the store's lease is lost: another run may use the store at the same time")

    def _renew(self) -> None:
        renewed = self._root.swap(self._name, _marked(self._content), self.etag)
        if renewed is None and (lease := self._root.stamped(self._name)) and _content(lease.content) == self._content:
            renewed = lease.etag  # the first put succeeded, but the response was lost, so the client repeated the put
        self.is_lost = renewed is None
        self.etag = renewed or self.etag
