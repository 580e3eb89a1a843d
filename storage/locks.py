"""Locks between processes: ``flock`` belongs to an open file, so the kernel releases it when its holder dies."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from storage.errors import StoreError, unwritable

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@contextmanager
def host_lock(name: str, *, on_wait: Callable[[], None] | None = None, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock `name` of this host while the block runs; wait, without polling, until it is free.

    It is not re-entrant: a process that asks for a lock it already holds waits forever.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid lock name: expected lower-case letters, digits and hyphens")
    shared = Path("/run/lock")
    if not os.access(shared, os.W_OK | os.X_OK):
        shared = Path(tempfile.gettempdir())
    path = (folder or shared) / f"nightquant-{name}.lock"
    try:
        lock = open(path, "rb", opener=_open_shared)  # noqa: SIM115
    except OSError as error:
        raise StoreError(
            f"The lock {path} cannot be opened: {error.strerror}.", hint="Make it readable for this user, or remove it."
        ) from error
    # Closing releases a lock: no child inherits the file.
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def file_lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold ``flock`` on a file, which is created if it is missing and never removed.

    Without `wait`, raise `BlockingIOError` if another process holds it.
    """
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.open("ab"))
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError as error:
            raise unwritable(path, error) from error
        yield


@contextmanager
def passing_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, in a folder that exists, while the block runs; remove it afterwards.

    For work that is done once (a download, a training), whose lock files would otherwise pile up.
    """
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock.fileno(), path):
                # Its last holder has removed it, and another process may hold a new one.
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _open_shared(path: str, flags: int) -> int:
    flags |= os.O_NOFOLLOW
    try:
        # Without O_CREAT first: Linux refuses to "create" another user's file in a sticky folder.
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)
