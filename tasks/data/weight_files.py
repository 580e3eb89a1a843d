"""Files that hold a model's weights: one, or several in a folder or under an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from storage.digest import digest_of, read_json
from storage.errors import ConfigurationError, InputError
from storage.transfer import Source, fetch, local_path
from tasks.job import Workspace
from tasks.workload.base import FetchedCheckpoint

_WEIGHTS, _INDEX = "model.safetensors", ".index.json"


def weight_files(path: Path) -> list[Path]:
    """Return the files that hold the weights: `path` itself, or those of a folder or an index.

    The index is a ``….index.json`` as transformers writes it. The list is empty if a folder holds neither
    ``model.safetensors`` nor its index.

    Raises
    ------
    InputError
        The index cannot be read, or names files that are not beside it.
    """
    if path.is_dir() and (path / _WEIGHTS).is_file():
        return [path / _WEIGHTS]
    index = path / (_WEIGHTS + _INDEX) if path.is_dir() else path
    if not index.name.endswith(_INDEX):
        return [path]
    if not index.is_file():
        return []
    document = read_json(index)
    named = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(named, dict) or not named:
        raise InputError(f"{index}: names no files of weights.", hint="Expected an index as save_pretrained writes it.")
    files = [index.parent / name for name in sorted({str(name) for name in named.values()})]
    if wrong := [file.name for file in files if file.parent != index.parent or not file.is_file()]:
        raise InputError(f"{index.parent}: {index.name} names files that are not there: {', '.join(wrong[:5])}.")
    return files


@contextmanager
def fetch_weights(settings: FetchedCheckpoint, workspace: Workspace) -> Iterator[Source]:
    """Give access to what ``checkpoint.uri`` names, as `storage.transfer.fetch` does for one file.

    Several files have one SHA-256 together, and are local.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, or ``sha256`` is missing for a remote file or given for several.
    InputError
        A file is not available, too large, or not the expected one.
    StoreError
        The folder for downloads cannot be written.
    """
    local = local_path(settings.uri)
    files = [settings.uri] if local is None else [str(file) for file in weight_files(local)]
    if not files:
        raise InputError(
            f"{local}: holds neither {_WEIGHTS} nor {_WEIGHTS}{_INDEX}.", hint="Name the file in checkpoint.uri."
        )
    if len(files) > 1 and settings.sha256:
        raise ConfigurationError(
            f"{local}: sha256 pins one file, and this names {len(files)}.", hint="Remove checkpoint.sha256."
        )
    with ExitStack() as stack:
        parts = [
            stack.enter_context(
                fetch(
                    file,
                    workspace.store.root / "downloads",
                    sha256=settings.sha256,
                    max_bytes=settings.max_bytes,
                    retries=settings.retries,
                    progress=workspace.progress,
                )
            )
            for file in files
        ]
        if local is None or len(parts) == 1:
            yield parts[0]
        else:
            yield Source(digest_of({"files": [part.sha256 for part in parts]}), lambda: local)
