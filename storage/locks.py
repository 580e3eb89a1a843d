"""Locks between processes; the kernel releases the lock of a process that dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from storage.errors import unwritable


@contextmanager
def host_lock(name: str, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold this user's lock `name` on this host while the block runs; wait until the lock is free.

    The lock file is in the user's cache folder, because a runtime folder exists only while the user is logged in. Hosts
    may share the cache folder, so the file is named after the host's boot, which all containers of a host report alike.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    path = user_cache_path("nightquant") / "locks" / f"{name}-{boot}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(path, wait=False))
        except Timeout:
            on_wait()
            # A waiting process must not disturb the benchmark that it waits for.
            stack.enter_context(file_lock(path, poll_s=1))
        yield


@contextmanager
def file_lock(path: Path, *, wait: bool = True, poll_s: float = 0.05) -> Iterator[None]:
    """Lock a file while the block runs; raise `Timeout` if `wait` is false and the lock is not available."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # On a file system without `flock`, a lock of another kind would outlive a killed process.
        lock = FileLock(path, blocking=wait, poll_interval=poll_s, fallback_to_soft=False).acquire()
    except Timeout:
        raise
    except OSError as error:
        raise unwritable(path, error) from error
    with lock:
        yield


@contextmanager
def passing_lock(path: Path) -> Iterator[None]:
    """Lock the file at `path` while the block runs, then remove the file; use this lock for one-time work."""
    with file_lock(path):  # a waiting FileLock sees that the file was removed, and makes a new one
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
