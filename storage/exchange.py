"""Two folders change places in one step."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> None:
    """Exchange two folders' names: Linux's ``renameat2`` with ``RENAME_EXCHANGE``.

    Where the kernel or the file system has no such call (NFS, macOS) three renames do it, and for an instant
    `second` does not exist.

    Raises
    ------
    OSError
        A folder is missing, or may not be renamed.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL, errno.EXDEV):
            raise OSError(code, os.strerror(code), str(second))
    between = first.with_name(f"{first.name}.exchange")
    second.rename(between)
    first.rename(second)
    between.rename(first)
