"""Open a data set from a folder or an archive."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from storage.errors import ConfigurationError, shown
from storage.transfer import Source, fetch, local_path
from tasks.environment.libraries import reported_as
from tasks.values.job import Progress, silent


@contextmanager
def open_source(uri: str, downloads: Path, *, sha256: str | None, progress: Progress = silent) -> Iterator[Source]:
    """Open a directory or an archive as a folder of files; the first call to `Source.path` extracts an archive."""
    local = local_path(uri)
    if local is not None and local.is_dir():
        if sha256 is not None:
            raise ConfigurationError(
                f"{shown(uri)}: sha256 applies only to archives, but the URI names a directory.", hint="Remove sha256."
            )
        yield Source("", lambda: local)
        return
    with fetch(uri, downloads, sha256=sha256, progress=progress) as archive, ExitStack() as stack:

        def extracted() -> Path:
            path = archive.path()
            downloads.mkdir(parents=True, exist_ok=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="extracted-", dir=downloads)))
            extract(path, folder, shown(uri))
            return folder

        yield Source(archive.sha256, extracted)


def extract(archive: Path, folder: Path, named: str) -> None:
    """Extract an archive into an existing folder; Python's own filters keep all members inside the folder."""
    hint = "Use a directory, or a complete .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz archive."
    with reported_as(f"{named} cannot be extracted", hint):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
