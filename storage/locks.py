"""Locks that hold for every process of the host, and that the kernel frees when their holder dies.

``flock`` belongs to an open file, so a crash or a SIGKILL releases it at once; there is nothing to expire or to clean
up. The files lie in a place that all users of the host share, since two users' benchmarks disturb each other as well.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import StoreError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@contextmanager
def host_lock(name: str, *, on_wait: Callable[[], None] | None = None, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock `name` while the block runs; wait, without polling, until it is free.

    It is not re-entrant: a process that asks for a lock which it holds already waits for ever.

    Parameters
    ----------
    name
        Lower-case letters, digits and hyphens.
    on_wait
        Called once, before waiting, where another process holds the lock.
    folder
        Where the lock files lie; the host's shared runtime folder where it is left out.

    Raises
    ------
    StoreError
        The lock file cannot be made or opened.
    ValueError
        `name` is no valid name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a lock: expected lower-case letters, digits and hyphens")
    path = (folder or _shared_folder()) / f"nightquant-{name}.lock"
    descriptor = _open(path)
    try:
        _acquire(descriptor, on_wait)
        yield
    finally:
        # Closing releases the lock: no child inherits the descriptor, so nobody else keeps the file open.
        os.close(descriptor)


@contextmanager
def passing_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, in a folder that exists, while the block runs; it is gone afterwards.

    For what is wanted once and then never again (a download, a training), whose lock files would else pile up.

    Raises
    ------
    OSError
        The lock file cannot be made or opened.
    """
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock.fileno(), path):
                # Its last holder has removed it, and somebody may hold a new one.
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


def _shared_folder() -> Path:
    runtime = Path("/run/lock")
    return runtime if os.access(runtime, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _open(path: Path) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            # Without O_CREAT first: Linux refuses to "create" another user's file in a sticky folder.
            return os.open(path, flags)
        except FileNotFoundError:
            return os.open(path, flags | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(
            f"The lock {path} cannot be opened: {error.strerror}.", hint="Make it readable for this user, or remove it."
        ) from error


def _acquire(descriptor: int, on_wait: Callable[[], None] | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is not None:
            on_wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
