"""Use local files in place; download remote files, using httpx for HTTP and fsspec for all other schemes."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec

from storage.digest import file_digest
from storage.errors import ConfigurationError, InputError, StoreError, first_line, is_transient, shown
from storage.locks import passing_lock

_PIECE = 1 << 20
_TIMEOUT_S = 30.0
# torchvision and torch.hub report network failures and truncated files only in the text of a `RuntimeError`.
_AWAY = re.compile(
    "HTTP Error (408|425|429|5..)|urlopen error|timed out|[Cc]onnection|File not found or corrupted|invalid hash value"
)


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
    progress: Callable[[float, float, str], None] = lambda done, total, unit: None,
) -> Iterator[Source]:
    """Yield a `Source` for a file; remove the downloaded file if the block ends without an error.

    A remote file requires a SHA-256, and is downloaded to `folder`. Only one process at a time can use a remote file.
    """
    local = local_path(uri)
    if local is not None:
        yield Source(_check_local(local, sha256), lambda: local)
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

    @contextmanager
    def held(target: Path) -> Iterator[Path]:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(passing_lock(target.with_name(f"{target.name}.lock")))
                if not target.exists():
                    _download(uri, target, progress)
            except OSError as error:
                raise StoreError(
                    f"Cannot write to {folder}: {error.strerror or error}.",
                    hint="Free some disk space or fix the permissions.",
                    transient=is_transient(error),
                ) from error
            yield target
            target.unlink(missing_ok=True)

    with ExitStack() as stack:
        yield Source(sha256, cache(lambda: stack.enter_context(held(folder / sha256))))


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


def _check_local(path: Path, sha256: str | None) -> str:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file.")
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


def _download(uri: str, target: Path, progress: Callable[[float, float, str], None]) -> None:
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            for piece, total in _pieces(uri):
                file.write(piece)
                progress(file.tell(), max(total, file.tell()), "B")
        if (digest := file_digest(part)) != target.name:
            raise InputError(
                f"The SHA-256 of {shown(uri)} is {digest}, but {target.name} was expected.",
                hint="The file has changed, or the URI names the wrong file. Correct the URI or the sha256.",
            )
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _pieces(uri: str) -> Iterator[tuple[bytes, int]]:
    """Yield a remote file's pieces, each with the file's size in bytes, or 0 if the size is unknown."""
    try:
        yield from _http_pieces(uri) if urlsplit(uri).scheme in ("http", "https") else _fsspec_pieces(uri)
    except ConfigurationError:
        raise
    except Exception as error:  # each of fsspec's file systems has its own errors
        raise InputError(
            f"{shown(uri)} is not available: {first_line(error)}.",
            hint="Check the URI and the network.",
            transient=is_transient(error),
        ) from error


def _http_pieces(uri: str) -> Iterator[tuple[bytes, int]]:
    import httpx  # import here, because httpx also imports rich and most processes never download

    # A hook checks each request, including redirects. Requests to this host never use a proxy.
    hooks = {"request": [lambda request: _check_http(str(request.url))]}
    is_own = _is_loopback(urlsplit(uri).hostname or "")
    with (
        httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S, event_hooks=hooks, trust_env=not is_own) as client,
        client.stream("GET", uri, headers={"Accept-Encoding": "identity"}) as response,
    ):
        response.raise_for_status()
        for piece in response.iter_raw():
            yield piece, int(response.headers.get("Content-Length", 0))


def _check_http(uri: str) -> None:
    """Refuse plain HTTP, which is not encrypted, unless the URL refers to this host."""
    parts = urlsplit(uri)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        raise ConfigurationError(
            f"{parts.scheme}://{parts.hostname}{parts.path} uses plain HTTP, which is allowed only for localhost.",
            hint="Use an https:// URL.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fsspec_pieces(uri: str) -> Iterator[tuple[bytes, int]]:
    try:
        file_system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"The {urlsplit(uri).scheme}:// scheme cannot be used: {error}.",
            hint="For s3://, install nightquant[s3]; for other schemes, see fsspec's documentation.",
        ) from error
    size = file_system.size(path) or 0
    with file_system.open(path, "rb") as file:
        for piece in iter(partial(file.read, _PIECE), b""):
            yield piece, size


@contextmanager
def downloading() -> Iterator[None]:
    """Limit how long urllib waits for a server, and convert torchvision's network errors to `ConnectionError`."""
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)  # by default, urllib waits forever
    try:
        yield
    except RuntimeError as error:
        if _AWAY.search(str(error)):
            raise ConnectionError(str(error)) from error
        raise
    finally:
        socket.setdefaulttimeout(timeout)
