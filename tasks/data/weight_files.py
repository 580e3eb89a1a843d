"""Files that contain a model's weights: one file, or several files that an index lists."""

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
    """Return the weight files for `path`, which is a weight file, an index, or a folder that contains either.

    An index is an ``….index.json`` file in transformers' format. The list is empty if a folder contains neither
    ``model.safetensors`` nor its index.

    Raises
    ------
    InputError
        The index cannot be read, or lists files that are not in the index's folder.
    """
    if path.is_dir() and (path / _WEIGHTS).is_file():
        return [path / _WEIGHTS]
    index = path / (_WEIGHTS + _INDEX) if path.is_dir() else path
    if not index.name.endswith(_INDEX):
        return [path]
    if not index.is_file():
        return []
    document = read_json(index)
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} does not list any weight files.", hint="Use an index written by save_pretrained.")
    files = [index.parent / name for name in sorted({str(name) for name in weight_map.values()})]
    if missing := [file.name for file in files if file.parent != index.parent or not file.is_file()]:
        raise InputError(
            f"{index} lists files that are missing from its folder: {', '.join(missing[:5])}.",
            hint="Copy these files to the folder.",
        )
    return files


@contextmanager
def fetch_weights(settings: FetchedCheckpoint, workspace: Workspace) -> Iterator[Source]:
    """Yield a `Source` for the weights that ``checkpoint.uri`` names.

    A single file may be remote (see `storage.transfer.fetch`), but several files must be local. The digest of the
    `Source` covers all files.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, ``sha256`` is missing for a remote file, or ``sha256`` is set for several files.
    InputError
        A file is unavailable or too large, or has an unexpected SHA-256.
    StoreError
        The download folder is not writable.
    """
    local = local_path(settings.uri)
    files = [settings.uri] if local is None else [str(file) for file in weight_files(local)]
    if not files:
        raise InputError(
            f"{local} contains neither {_WEIGHTS} nor {_WEIGHTS}{_INDEX}.", hint="Set checkpoint.uri to a weight file."
        )
    if len(files) > 1 and settings.sha256:
        raise ConfigurationError(
            f"The weights in {local} consist of {len(files)} files, but checkpoint.sha256 can verify only one file.",
            hint="Remove checkpoint.sha256.",
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
