"""The shim: every operation by which a store changes, counted, and a fault at the k-th of them.

The store writes through Python's ``os`` functions and files, and s3fs. `Shim` replaces these while it is entered, for
paths below the folders that it watches. What DuckDB and PyArrow write lies in temporary folders elsewhere.

A kill is an exception that nothing catches, after which no operation does anything any more: no clean-up reaches the
disk, which is left as SIGKILL leaves it (`tests/storage/test_faults.py` holds it against a process that was killed),
without the seconds that each new process would take.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn
from unittest.mock import patch

from benchmarks.faults.disk import Disk

if TYPE_CHECKING:
    from storage.object_root import ObjectRoot

Kind = Literal["kill", "EIO", "ENOSPC", "killed before the answer", "answer lost"]
# What needs space on a disk that is full and stays so.
_GROWS = frozenset({"create", "write", "mkdir", "link"})


class Killed(BaseException):
    """The process is dead from here on."""


class Shim:
    """Count the changes below `folder`, or else the requests to `objects`, and do what `kind` says at number `at`.

    Number 0 is never.

    Attributes
    ----------
    calls
        Names of the operations so far.
    disk
        What a power cut would leave of `folder` now; None unless it is followed.
    """

    def __init__(
        self, folder: Path, objects: ObjectRoot | None = None, *, at: int = 0, kind: Kind = "kill", follow: bool = False
    ) -> None:
        self.calls: list[str] = []
        self.disk = Disk(folder) if follow else None
        self._folder, self._objects, self._at, self._kind = folder, objects, at, kind
        self._is_dead = False
        self._patches = ExitStack()

    def __enter__(self) -> Shim:
        if self._objects is not None:
            files = self._objects._files
            for name in ("pipe_file", "put_file", "rm_file"):
                self._replace(files, name, self._request(name, getattr(files, name)))
            return self
        for name in ("mkdir", "rmdir", "unlink", "remove", "chmod"):
            self._replace(os, name, self._one_path(name, getattr(os, name)))
        for name in ("rename", "replace", "link"):
            self._replace(os, name, self._two_paths(name, getattr(os, name)))
        self._replace(os, "fsync", self._fsync(os.fsync))
        for module in (io, builtins):
            self._replace(module, "open", self._open(io.open))
        self._replace(__import__("shutil"), "_USE_CP_SENDFILE", False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patches.close()

    def _replace(self, owner: object, name: str, replacement: object) -> None:
        self._patches.enter_context(patch.object(owner, name, replacement))

    def _step(
        self,
        operation: str,
        path: Path,
        do: Callable[[], Any],
        half: Callable[[], Any] | None = None,
        *,
        far: bool = False,
    ) -> Any:
        if self._is_dead:
            raise Killed
        self.calls.append(operation)
        number, kind = len(self.calls), self._kind
        is_full = kind == "ENOSPC" and 0 < self._at <= number and operation in _GROWS
        if number == self._at or is_full:
            if half is not None and kind in ("kill", "ENOSPC"):
                half()
                self._note("write", path)
            if kind in ("killed before the answer", "answer lost") and far:
                do()
            if kind in ("kill", "killed before the answer"):
                self._is_dead = True
                self.die()
            if kind != "ENOSPC" or is_full:
                code = errno.ENOSPC if is_full else errno.EIO
                raise OSError(code, os.strerror(code), str(path))
        return do()

    def die(self) -> NoReturn:
        """End the process, or what stands for it."""
        raise Killed

    def _note(self, operation: str, path: Path, other: Path | None = None) -> None:
        if self.disk is not None:
            self.disk.note(operation, path, other)

    def _watched(self, path: object, dir_fd: int | None = None) -> Path | None:
        if isinstance(path, int):
            found = Path(f"/proc/self/fd/{path}").readlink()
        elif dir_fd is not None:
            found = Path(f"/proc/self/fd/{dir_fd}").readlink() / os.fsdecode(path)  # type: ignore[call-overload]
        else:
            found = Path(os.fsdecode(path)).absolute()  # type: ignore[call-overload]
        return found if found.is_relative_to(self._folder) else None

    def _one_path(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        name = "unlink" if name == "remove" else name

        def replacement(path: Any, *arguments: Any, **options: Any) -> Any:
            watched = self._watched(path, options.get("dir_fd"))
            # An operation that the system refuses anyway (mkdir of what is there) changes nothing.
            if watched is None or watched.exists() == (name == "mkdir"):
                return original(path, *arguments, **options)

            def do() -> None:
                original(path, *arguments, **options)
                self._note(name, watched)

            return self._step(name, watched, do)

        return replacement

    def _two_paths(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        name = "rename" if name == "replace" else name

        def replacement(first: Any, second: Any, *arguments: Any, **options: Any) -> Any:
            source, target = self._watched(first), self._watched(second)
            if source is None or target is None:
                return original(first, second, *arguments, **options)

            def do() -> None:
                original(first, second, *arguments, **options)
                self._note(name, source, target)

            return self._step(name, target, do)

        return replacement

    def _fsync(self, original: Callable[[int], None]) -> Callable[[int], None]:
        def replacement(descriptor: int) -> None:
            path = self._watched(descriptor)
            if path is None:
                return original(descriptor)

            def do() -> None:
                # Nothing is flushed: the model knows what would be, and the disk is in use by others.
                self._note("fsync", path)

            return self._step("fsync", path, do)

        return replacement

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            path = None if isinstance(file, int) or not set(mode) & set("wxa+") else self._watched(file)
            if path is None:
                return original(file, mode, *arguments, **options)
            plain = mode.replace("b", "").replace("t", "")
            if path.exists() and "w" not in plain:
                raw = _File(path, plain, self)
            else:
                raw = self._step("create", path, lambda: self._created(path, plain))
            buffered: IO[bytes] = io.BufferedRandom(raw) if "+" in plain else io.BufferedWriter(raw)  # type: ignore[assignment]
            if "b" in mode:
                return buffered
            return io.TextIOWrapper(buffered, options.get("encoding"))

        return replacement

    def _created(self, path: Path, mode: str) -> _File:
        file = _File(path, mode, self)
        self._note("create", path)
        return file

    def written(self, file: _File, data: bytes) -> int:
        """Write to a file that was opened here."""

        def write(part: bytes) -> int:
            return io.FileIO.write(file, part)

        def do() -> int:
            done = write(data)
            self._note("write", file.path)
            return done

        size: int = self._step("write", file.path, do, lambda: write(data[: len(data) // 2]))
        return size

    def _request(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: Any, **options: Any) -> Any:
            return self._step(name, Path(name), lambda: original(*arguments, **options), far=True)

        return replacement


class _File(io.FileIO):
    """A file whose every write is one operation."""

    def __init__(self, path: Path, mode: str, shim: Shim) -> None:
        super().__init__(path, mode)
        self.path, self._shim = path, shim

    def write(self, data: Any) -> int:
        return self._shim.written(self, bytes(data))
