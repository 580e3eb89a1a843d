"""A store in a local folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import StoreError, unwritable
from storage.root import Entry, StoreRoot, file_lock, fsync

if TYPE_CHECKING:
    import pyarrow.fs


class LocalRoot(StoreRoot):
    """A store in a local folder, which is made on first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = str(folder)

    @property
    def local(self) -> Path:
        """The root's folder."""
        return self._folder

    def uri(self, name: str) -> str:
        """The file's absolute path."""
        return str(self._folder / name)

    def list(self, prefix: str) -> list[Entry]:
        """Every file under a folder, sorted by name."""
        return sorted(self._walk(self._folder / prefix), key=lambda entry: entry.name)

    def _walk(self, folder: Path) -> Iterator[Entry]:
        try:
            with self._read():
                items = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for item in items:
            if item.is_dir(follow_symlinks=False):
                yield from self._walk(Path(item.path))
                continue
            try:
                with self._read():
                    status = item.stat()
            except FileNotFoundError:  # removed between the listing and here, as temporary files are
                continue
            yield Entry(Path(item.path).relative_to(self._folder).as_posix(), status.st_size, status.st_mtime)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        with self._read():
            return (self._folder / name).is_file()

    def read(self, name: str) -> bytes:
        """A file's bytes."""
        with self._read():
            return (self._folder / name).read_bytes()

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a file unless the name is taken: temporary name, fsync, link, fsync of the folder."""
        target = self._folder / name
        with self._written():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _written_beside(target, content) as temporary:
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    return False
            fsync(target.parent)
        return True

    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace a file in one step."""
        target = self._folder / name
        with self._written():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _written_beside(target, content) as temporary:
                temporary.replace(target)
            fsync(target.parent)

    def download(self, name: str, target: Path) -> None:
        """Copy a file to a local path."""
        with self._read():
            shutil.copyfile(self._folder / name, target)

    def delete(self, name: str) -> None:
        """Remove a file."""
        with self._written():
            (self._folder / name).unlink(missing_ok=True)

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold ``<root>/.locks/<name>``."""
        return file_lock(self._folder / ".locks" / name, shared=shared)

    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """pyarrow's local file system."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(self._folder)

    def duckdb_filesystem(self) -> None:
        """None: DuckDB reads local files itself."""

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self.url, error) from error

    @contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(
                f"The store {self.url} cannot be read: {error}.",
                hint="Mend the permissions or the disk, or name another store with --store.",
            ) from error


@contextmanager
def _written_beside(target: Path, content: bytes | Path) -> Iterator[Path]:
    # No suffix of the final name: readers' globs (*.parquet) must not match a half-written file.
    temporary = target.with_name(f".{target.stem}-{uuid.uuid4().hex}.tmp")
    try:
        if isinstance(content, Path):
            shutil.copyfile(content, temporary)
        else:
            temporary.write_bytes(content)
        fsync(temporary)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
