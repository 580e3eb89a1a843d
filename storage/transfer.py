"""Use local files in place; download and check remote files."""

from __future__ import annotations

import itertools
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
    requires a SHA-256, and is downloaded to `folder`. After a broken connection, the download is repeated up to
    `retries` times, with increasing pauses that start at `first_wait_s`. Only one process at a time can download and
    use a remote file.
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
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(passing_lock(target.with_name(f"{self.sha256}.lock")))
                if not target.exists():
                    self._download(target)
            except OSError as error:
                raise StoreError(
                    f"Cannot write to {self.folder}: {error.strerror or error}.",
                    hint="Free some disk space or fix the permissions.",
                    transient=is_transient(error),
                ) from error
            yield target
            target.unlink(missing_ok=True)

    def _download(self, target: Path) -> None:
        part = target.with_name(f"{self.sha256}.part")
        try:
            self._receive(part)
            if (digest := file_digest(part)) != self.sha256:
                raise InputError(
                    f"The SHA-256 of {shown(self.uri)} is {digest}, but {self.sha256} was expected.",
                    hint="The file has changed, or the URI names the wrong file. Correct the URI or the sha256.",
                )
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def _receive(self, part: Path) -> None:
        for attempt in itertools.count():
            try:
                with open_stream(self.uri) as stream:
                    self._write(part, stream)
                return
            except (Broken, Refused) as error:
                if isinstance(error, Refused) or attempt == self.retries:
                    attempts = f" (tried {attempt + 1} times)" if attempt else ""
                    raise InputError(
                        f"{shown(self.uri)} is not available: {error}{attempts}.",
                        hint="Check the URI and the network.",
                        transient=error.transient,
                    ) from error
            time.sleep(backoff_s(attempt, self.first_wait_s))

    def _write(self, part: Path, stream: Stream) -> None:
        self._check_size(stream.total)
        with part.open("wb") as file:
            for piece in stream.pieces:
                self._check_size(file.tell() + len(piece))
                file.write(piece)
                self.progress(file.tell(), max(stream.total, file.tell()), "B")

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise InputError(
                f"{shown(self.uri)}: the file is at least {size} bytes long, but the limit is {self.max_bytes} bytes.",
                hint="If you expect a file this large, raise max_bytes.",
            )
