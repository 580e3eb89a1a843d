"""A store on an object store that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigurationError, StoreError
from storage.root import Entry, StoreRoot, cache_folder, file_lock, url_key

if TYPE_CHECKING:
    import pyarrow.fs


class ObjectRoot(StoreRoot):
    """A store under ``s3://bucket/prefix``.

    Credentials, region and endpoint come from where every S3 client takes them (``AWS_ACCESS_KEY_ID``,
    ``AWS_ENDPOINT_URL``, ``~/.aws`` …). Listings are never cached: a cached one hides what another process wrote.
    """

    def __init__(self, url: str) -> None:
        self._prefix = url.removeprefix("s3://").rstrip("/")
        self.url = f"s3://{self._prefix}"
        if not self._prefix:
            raise ConfigurationError(f'The store "{url}" names no bucket.', hint="Use s3://bucket/prefix.")

    @cached_property
    def _files(self) -> Any:
        try:
            import s3fs
        except ImportError as error:
            raise ConfigurationError(
                f"The store {self.url} needs the s3 extra.", hint="Install it with: pip install 'nightquant[s3]'"
            ) from error
        return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    @property
    def local(self) -> None:
        """None: there is no local folder."""

    def uri(self, name: str) -> str:
        """The file's URL."""
        return f"{self.url}/{name}"

    def list(self, prefix: str) -> list[Entry]:
        """Every object under a prefix, sorted by name."""
        with self._explained():
            found = self._files.find(f"{self._prefix}/{prefix}", detail=True)
        # An empty listing makes s3fs ask for the prefix itself, which is a folder if a writer was quicker than that.
        entries = [
            Entry(path.removeprefix(f"{self._prefix}/"), int(info["size"]), info["LastModified"].timestamp())
            for path, info in found.items()
            if info["type"] == "file"
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        # Not isfile, which takes a store that cannot be reached for a file that is not there.
        with self._explained():
            try:
                return bool(self._files.info(f"{self._prefix}/{name}")["type"] == "file")
            except FileNotFoundError:
                return False

    def read(self, name: str) -> bytes:
        """An object's bytes."""
        with self._explained(may_miss=True):
            content: bytes = self._files.cat_file(f"{self._prefix}/{name}")
        return content

    def put_new(self, name: str, content: bytes) -> bool:
        """Write an object unless the key is taken: one conditional put."""
        with self._explained():
            try:
                self._files.pipe_file(f"{self._prefix}/{name}", content, mode="create")
            except FileExistsError:
                return False
        return True

    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace an object; an upload in parts becomes visible when its last part is in."""
        with self._explained():
            if isinstance(content, Path):
                self._files.put_file(str(content), f"{self._prefix}/{name}")
            else:
                self._files.pipe_file(f"{self._prefix}/{name}", content)

    def download(self, name: str, target: Path) -> None:
        """Copy an object to a local path."""
        with self._explained(may_miss=True):
            self._files.get_file(f"{self._prefix}/{name}", str(target))

    def delete(self, name: str) -> None:
        """Remove an object."""
        if self.exists(name):
            with self._explained():
                self._files.rm_file(f"{self._prefix}/{name}")

    def lock(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Exclude the other processes of this host and user; other hosts are kept apart by conditional puts."""
        return file_lock(cache_folder() / url_key(self.url) / "locks" / name, shared=shared)

    def arrow(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The fsspec file system behind pyarrow's interface."""
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        handler = FSSpecHandler(self._files)  # type: ignore[abstract]  # the stubs miss what the class implements
        return PyFileSystem(handler), self._prefix

    def duckdb_filesystem(self) -> Any:
        """The fsspec file system, which DuckDB reads ``s3://`` through; no extension is needed."""
        return self._files

    @contextmanager
    def _explained(self, *, may_miss: bool = False) -> Iterator[None]:
        """Say what to do about a store that cannot be reached; `may_miss` lets a missing file through as such."""
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        try:
            yield
        except (OSError, BotoCoreError, ClientError) as error:
            if may_miss and isinstance(error, FileNotFoundError):
                raise
            raise StoreError(
                f"The store {self.url} cannot be used: {str(error).rstrip('.')}.",
                hint="Check the bucket's name, the network, the credentials and AWS_ENDPOINT_URL; the next run goes on "
                "from what is already there.",
            ) from error
