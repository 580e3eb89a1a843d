"""Use local files in place; download and check remote files, and resume interrupted downloads."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage.digest import file_digest
from storage.errors import ConfigurationError, InputError, StoreError, shown
from storage.locks import passing_lock
from storage.remote import Broken, Refused, Stream, open_stream
from storage.transient import backoff_s, is_transient

Listener = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Source:
    """A file or the content of an archive; the first call to ``path`` starts the download."""

    sha256: str
    path: Callable[[], Path]


@contextmanager
def fetch(
    uri: str,
    folder: Path,
    *,
    sha256: str | None,
    max_bytes: int = 1 << 40,
    retries: int = 4,
    first_wait_s: float = 0.5,
    progress: Listener = lambda done, total, unit: None,
) -> Iterator[Source]:
    """Yield a `Source` for a file; remove the downloaded file if the block ends without an error.

    The URI is a plain path or a URL that fsspec supports; an ``http://`` URL must refer to this host. A remote file
    requires a SHA-256. :attr:`Source.path` downloads to ``<sha256>.part`` in `folder`. A later call resumes an
    unfinished download. After a broken connection, the download is resumed up to `retries` times, with increasing
    pauses that start at `first_wait_s`. Only one process at a time can download and use a remote file.
    """
    local = local_path(uri)
    if local is not None:
        yield Source(_check_local(local, sha256, max_bytes), lambda: local)
        return
    if "::" in uri:
        raise ConfigurationError(
            f"{shown(uri)} is a chained URI, which is not allowed.", hint="Use the URI of the file itself."
        )
    if sha256 is None:
        raise ConfigurationError(
            f"{shown(uri)} is a remote file, so a sha256 is required.",
            hint="Set sha256 in the same section as the URI, so that every run uses the same file.",
        )
    download = _Download(uri, folder, sha256, max_bytes, retries, first_wait_s, progress)
    with ExitStack() as stack:
        yield Source(sha256, cache(lambda: stack.enter_context(download.held())))


def local_path(uri: str) -> Path | None:
    """Return the local path that a URI names, or None if the file is remote."""
    if "://" not in uri:
        return Path(uri)
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ConfigurationError(f"{shown(uri)} is not a valid URI: {error}. Correct the URI.") from error
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None


def _check_local(path: Path, sha256: str | None, max_bytes: int) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"{path}: not a file.")
        if size > max_bytes:
            raise InputError(
                f"{path} is {size} bytes long, but the limit is {max_bytes} bytes.",
                hint="If you expect a file this large, raise max_bytes.",
            )
        digest = file_digest(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror or error}.", transient=is_transient(error)
        ) from error
    if sha256 is not None and digest != sha256:
        raise InputError(
            f"The SHA-256 of {path} is {digest}, but {sha256} was expected.", hint="Correct the path or the sha256."
        )
    return digest


@dataclass(frozen=True)
class _Download:
    uri: str
    folder: Path
    sha256: str
    max_bytes: int
    retries: int
    first_wait_s: float
    progress: Listener

    @contextmanager
    def held(self) -> Iterator[Path]:
        target = self.folder / self.sha256
        part = target.with_name(f"{self.sha256}.part")
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(passing_lock(target.with_name(f"{self.sha256}.lock")))
                if not target.exists():
                    part.touch()
                    self._complete(part)
                    part.replace(target)
            except OSError as error:
                raise StoreError(
                    f"Cannot write to {self.folder}: {error.strerror or error}.",
                    hint="Free some disk space or fix the permissions. The next run resumes the download.",
                    transient=is_transient(error),
                ) from error
            yield target
            target.unlink(missing_ok=True)

    def _complete(self, part: Path) -> None:
        for is_last in (False, True):
            is_resumed = self._receive(part)
            if (digest := file_digest(part)) == self.sha256:
                return
            os.truncate(part, 0)
            # A resumed download may mix two versions of the file, so download the file again from the start.
            if is_last or not is_resumed:
                raise InputError(
                    f"The SHA-256 of {shown(self.uri)} is {digest}, but {self.sha256} was expected.",
                    hint="The file has changed, or the URI names the wrong file. Correct the URI or the sha256.",
                )

    def _receive(self, part: Path) -> bool:
        """Download the rest of `part`, with retries; return whether the download was resumed."""
        is_resumed = False
        for attempt in itertools.count():
            try:
                with open_stream(self.uri, part.stat().st_size) as stream:
                    is_resumed = stream.start > 0
                    self._write(part, stream)
                break
            except (Broken, Refused) as error:
                if isinstance(error, Refused) or attempt == self.retries:
                    attempts = f" (tried {attempt + 1} times)" if attempt else ""
                    raise InputError(
                        f"{shown(self.uri)} is not available: {error}{attempts}.",
                        hint="Check the URI and the network. The next run resumes the download.",
                        transient=error.transient,
                    ) from error
            time.sleep(backoff_s(attempt, self.first_wait_s))
        return is_resumed

    def _write(self, part: Path, stream: Stream) -> None:
        self._check_size(stream.total or 0)
        with part.open("r+b") as file:
            file.truncate(stream.start)
            file.seek(stream.start)
            done = stream.start
            for piece in stream.pieces:
                done += len(piece)
                self._check_size(done)
                file.write(piece)
                self.progress(done, max(stream.total or 0, done), "B")
        if stream.total is not None and done < stream.total:
            raise Broken(f"the connection ended after {done} of {stream.total} bytes")

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise InputError(
                f"{shown(self.uri)}: the file is at least {size} bytes long, but the limit is {self.max_bytes} bytes.",
                hint="If you expect a file this large, raise max_bytes.",
            )
