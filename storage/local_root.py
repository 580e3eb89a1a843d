"""Read and write a store in a local folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from storage.digest import file_digest
from storage.errors import StoreError, is_transient, unwritable
from storage.root import Entry, Stamped, StoreRoot, fsync, make_folder


class LocalRoot(StoreRoot):
    """A store in a local folder, which the first write creates."""

    local: Path

    def __init__(self, folder: Path) -> None:
        self.local = folder
        self.url = str(folder)

    def list(self, prefix: str) -> list[Entry]:
        entries = []
        with self._reading():
            for folder, _, names in os.walk(self.local / prefix, onerror=_raise_unless_missing):
                for name in names:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):  # a writer may have removed its temporary file
                        status = path.stat()
                        name = path.relative_to(self.local).as_posix()
                        entries.append(Entry(name, status.st_size, status.st_mtime))
        return sorted(entries)

    def exists(self, name: str) -> bool:
        with self._reading():
            return (self.local / name).is_file()

    def read(self, name: str) -> bytes:
        with self._reading():
            return (self.local / name).read_bytes()

    def digest(self, name: str) -> str:
        with self._reading():
            return file_digest(self.local / name)

    def stamped(self, name: str) -> Stamped | None:
        try:
            with self._reading():
                modified = (self.local / name).stat().st_mtime
                content = (self.local / name).read_bytes()
        except FileNotFoundError:
            return None
        return Stamped(content, hashlib.sha256(content).hexdigest(), time.time() - modified)

    def swap(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Lock the store, read the file again, and replace the file if its tag is unchanged."""
        with self.lock("swap"):
            current = self.stamped(name)
            if (current.etag if current else None) != etag:
                return None
            self.put(name, content)
        return hashlib.sha256(content).hexdigest()

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists: write a temporary file, flush it, link it, and flush the folder."""
        with self._temporary_file(name, content) as (temporary, target):
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                return False
        return True

    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace a file: write a temporary file, flush it, rename it, and flush the folder."""
        with self._temporary_file(name, content) as (temporary, target):
            temporary.replace(target)

    def publish(self, folder: Path, location: str, marker: str) -> bool:
        """Move a folder on this file system into the store: flush the folder, rename it, and flush its new parent."""
        final = self.local / location
        with self._writing():
            for path in folder.rglob("*"):
                fsync(path)
            fsync(folder)
            make_folder(final.parent)
            try:
                folder.rename(final)
            except OSError:
                if (final / marker).is_file():
                    return False
                if not final.exists():
                    raise
                # The existing folder is incomplete: a user or a killed process removed some of its files.
                aside = folder.with_name(uuid.uuid4().hex)
                final.rename(aside)
                folder.rename(final)
                shutil.rmtree(aside, ignore_errors=True)
            fsync(final.parent)
        return True

    def download(self, name: str, target: Path) -> None:
        with self._reading():
            shutil.copyfile(self.local / name, target)

    def delete(self, name: str) -> None:
        with self._writing():
            (self.local / name).unlink(missing_ok=True)

    @contextmanager
    def _temporary_file(self, name: str, content: bytes | Path) -> Iterator[tuple[Path, Path]]:
        """Write a complete file under a temporary name; yield the temporary path and the final path."""
        target = self.local / name
        # Drop the final name's suffix, so that readers' globs (``*.parquet``) do not match an incomplete file.
        temporary = target.with_name(f".{target.stem}-{uuid.uuid4().hex}.tmp")
        with self._writing(), ExitStack() as stack:
            make_folder(target.parent)
            stack.callback(temporary.unlink, missing_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, temporary)
            else:
                temporary.write_bytes(content)
            fsync(temporary)
            yield temporary, target
            fsync(target.parent)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self.url, error) from error

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"The store {self.url} cannot be read: {error}.",
                hint="Fix the permissions or the disk, or choose another store with --store.",
                transient=is_transient(error),
            ) from error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
