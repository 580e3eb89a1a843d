"""Locks between processes; a ``flock`` lock belongs to an open file, so the kernel releases a dead process's lock."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from storage.errors import StoreError, unwritable

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
# To avoid deadlocks, all processes must lock the host's folders in the same order.
_HOST_FOLDERS = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))


@contextmanager
def host_lock(
    name: str, *, on_wait: Callable[[], None] | None = None, folders: Sequence[Path] = _HOST_FOLDERS
) -> Iterator[None]:
    """Hold the lock `name` of this host while the block runs; wait, without polling, until the lock is free.

    The process takes the lock in each usable folder of `folders`, and thus excludes all processes that use any of these
    folders. No single folder works for all users. On some systems, only root may write to ``/run/lock``. A service may
    have its own ``/tmp`` or may see everything except ``/dev`` as read-only. A lock file may be removed at log-out or
    during a clean-up. An abstract socket would not exclude processes in other containers, which have their own network
    namespaces. ``TMPDIR`` is ignored.

    The lock is not re-entrant: a process that takes the lock twice waits forever.

    Raises
    ------
    StoreError
        The lock cannot be taken in any of the folders.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid lock name; use only lower-case letters, digits and hyphens")
    announce = cache(on_wait or (lambda: None))
    problems: list[str] = []
    with ExitStack() as stack:
        for folder in folders:
            path = folder / f"nightquant-{name}.lock"
            try:
                stack.enter_context(_locked(path, announce))
            except OSError as error:
                problems.append(f"{path}: {error.strerror or error}")
        if len(problems) == len(folders):
            raise StoreError(
                f"The host's lock cannot be taken in any folder ({'; '.join(problems)}).",
                hint="Make one of the listed files readable by all users, or remove that file.",
            )
        yield


@contextmanager
def file_lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Lock a file with ``flock`` while the block runs, and leave the file in place afterwards.

    If `wait` is false and the lock is not available, raise `BlockingIOError`.
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
    """Lock the file at `path` while the block runs, then remove the file; use this lock for one-time work."""
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock.fileno(), path):
                # The last holder removed the file, and another process may have locked a new file.
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


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a ``flock`` lock on a file that all users share; raise `OSError` if the file cannot be opened."""
    while True:
        # Closing the file releases the lock, because child processes do not inherit the file descriptor.
        with open(path, "rb", opener=_open_shared) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock.fileno(), path):
                yield
                return
        # The file was removed in the meantime, and another process may have locked a new file.


def _open_shared(path: str, flags: int) -> int:
    """Open a file for reading, which is enough for a lock and also works for other users' files."""
    flags |= os.O_NOFOLLOW
    while True:
        # Try without ``O_CREAT`` first, because Linux refuses to "create" another user's file in a sticky folder.
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        with suppress(FileExistsError):  # another process created the file first
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(descriptor, 0o644)  # set the mode regardless of the umask
            return descriptor
