"""A store on an S3-compatible object store; this module is imported only when needed, because s3fs is optional."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS  # some of these errors derive from neither `OSError` nor botocore's errors

from storage.errors import ConfigurationError, StoreError, answer_of, is_transient
from storage.root import Entry, Stamped, StoreRoot, unconditional

_PIECE = 8 << 20


class ObjectRoot(StoreRoot):
    """A store under ``s3://bucket/prefix`` with the usual S3 settings (``AWS_ENDPOINT_URL``, ``~/.aws`` …)."""

    def __init__(self, url: str) -> None:
        self._prefix = url.removeprefix("s3://").rstrip("/")
        self.url = f"s3://{self._prefix}"
        if not self._prefix:
            raise ConfigurationError(
                f'The store URL "{url}" does not name a bucket.', hint="Use a URL of the form s3://bucket/prefix."
            )

    @cached_property
    def _files(self) -> S3FileSystem:
        # A cached listing would hide files that another process wrote.
        return S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    def list(self, prefix: str) -> list[Entry]:
        with self._opened() as files:
            objects = files.find(f"{self._prefix}/{prefix}", detail=True)
        # Skip folders, because s3fs may return a folder if a file appears while an empty prefix is listed.
        return sorted(
            Entry(path.removeprefix(f"{self._prefix}/"), int(info["size"]), info["LastModified"].timestamp())
            for path, info in objects.items()
            if info["type"] == "file"
        )

    def exists(self, name: str) -> bool:
        # Do not use ``isfile``, which returns False if the store cannot be reached.
        with self._opened() as files:
            try:
                return bool(files.info(f"{self._prefix}/{name}")["type"] == "file")
            except FileNotFoundError:
                return False

    def read(self, name: str) -> bytes:
        with self._opened(may_miss=True) as files:
            return bytes(files.cat_file(f"{self._prefix}/{name}"))

    def digest(self, name: str) -> str:
        with (
            self._opened(may_miss=True) as files,
            files.open(f"{self._prefix}/{name}", "rb", block_size=_PIECE) as stream,
        ):
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def put_new(self, name: str, content: bytes) -> bool:
        with self._opened() as files:
            try:
                files.pipe_file(f"{self._prefix}/{name}", content, mode="create")
            except FileExistsError:
                return False
        return True

    def swap(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Use one conditional put to replace an object whose tag is `etag`, or to create one if `etag` is None."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with self._opened() as files:
            try:
                return str(files.pipe_file(f"{self._prefix}/{name}", content, **condition)["ETag"])
            except OSError as error:
                status, code = answer_of(error.__cause__ or error) or (0, "")
                if status == HTTPStatus.NOT_IMPLEMENTED:
                    raise unconditional(self.url, "If-None-Match" if etag is None else "If-Match") from error
                # Status 404 means that the object has just been removed, unless the bucket itself is missing.
                is_gone = status == HTTPStatus.NOT_FOUND and etag is not None and code != "NoSuchBucket"
                if not is_gone and status not in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT):
                    raise
        return None

    def stamped(self, name: str) -> Stamped | None:
        """Read an object with its tag and age; if the object is replaced during the call, return the old tag."""
        bucket, _, key = f"{self._prefix}/{name}".partition("/")
        with self._opened() as files:
            try:
                head = files.call_s3("head_object", Bucket=bucket, Key=key)
                content = bytes(files.cat_file(f"{bucket}/{key}"))
            except FileNotFoundError:
                return None
        now = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Stamped(content, str(head["ETag"]), (now - head["LastModified"]).total_seconds())

    def put(self, name: str, content: bytes | Path) -> None:
        """Write or replace an object; a multipart upload becomes visible only when it is complete."""
        with self._opened() as files:
            if isinstance(content, Path):
                files.put_file(str(content), f"{self._prefix}/{name}")
            else:
                files.pipe_file(f"{self._prefix}/{name}", content)

    def publish(self, folder: Path, location: str, marker: str) -> bool:
        """Upload a folder, with the file `marker` last."""
        if self.exists(f"{location}/{marker}"):
            return False
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        for name in sorted(names, key=lambda name: name == marker):
            self.put(f"{location}/{name}", folder / name)
        return True

    def download(self, name: str, target: Path) -> None:
        with self._opened(may_miss=True) as files:
            files.get_file(f"{self._prefix}/{name}", str(target))

    def delete(self, name: str) -> None:
        if self.exists(name):
            with self._opened() as files:
                files.rm_file(f"{self._prefix}/{name}")

    def filesystem(self) -> S3FileSystem:
        return self._files

    @contextmanager
    def _opened(self, *, may_miss: bool = False) -> Iterator[S3FileSystem]:
        """Yield the file system, and convert its errors to `StoreError`, except `FileNotFoundError` if `may_miss`."""
        try:
            yield self._files
        except (OSError, BotoCoreError, ClientError, *S3_RETRYABLE_ERRORS) as error:
            if may_miss and isinstance(error, FileNotFoundError):
                raise
            raise StoreError(
                f"The store {self.url} cannot be used: {str(error).rstrip('.')}.",
                hint="Check the bucket's name, the network, the credentials and AWS_ENDPOINT_URL. The next run "
                "continues where this run stopped.",
                transient=is_transient(error),
            ) from error
