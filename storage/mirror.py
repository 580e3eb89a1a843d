"""Artifacts on an object store: kept in a local folder too, fetched on first use, checked by their digests."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

from storage.digest import file_digest
from storage.errors import StoreError
from storage.root import StoreRoot

MANIFEST = "artifact.json"


class ArtifactMirror:
    """The artifacts of an object store under a local folder of the same layout.

    Parameters
    ----------
    remote
        The object store, which decides what exists.
    local
        Where copies are kept; losing them costs only time.
    """

    def __init__(self, remote: StoreRoot, local: Path) -> None:
        self._remote = remote
        self._local = local

    def fetch(self, location: str) -> bool:
        """Make an artifact's folder (relative to the roots) exist locally; False where the store has no such one.

        Raises
        ------
        StoreError
            A file of it is missing or is not what its manifest says.
        """
        if not self._remote.exists(f"{location}/{MANIFEST}"):
            return False
        final = self._local / location
        if (final / MANIFEST).is_file():
            return True
        work = self._local / "artifacts" / ".tmp" / uuid.uuid4().hex
        work.mkdir(parents=True)
        try:
            self._download(location, work)
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                work.rename(final)
            except OSError:
                if not (final / MANIFEST).is_file():  # another process was first: equal digests, equal content
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return True

    def upload(self, location: str) -> None:
        """Publish a complete local artifact; its manifest goes last, so that nothing is visible before it is whole."""
        folder = self._local / location
        if self._remote.exists(f"{location}/{MANIFEST}"):
            return
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != MANIFEST:
                self._remote.put(f"{location}/{path.relative_to(folder).as_posix()}", path)
        self._remote.put(f"{location}/{MANIFEST}", folder / MANIFEST)

    def _download(self, location: str, work: Path) -> None:
        content = self._remote.read(f"{location}/{MANIFEST}")
        for name, facts in json.loads(content)["files"].items():
            target = work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._remote.download(f"{location}/{name}", target)
            except FileNotFoundError as error:
                raise _damaged(self._remote, location, f"{name} is missing") from error
            if file_digest(target) != facts["sha256"]:
                raise _damaged(self._remote, location, f"{name} is not what was published")
        (work / MANIFEST).write_bytes(content)


def _damaged(root: StoreRoot, location: str, what: str) -> StoreError:
    return StoreError(
        f"The artifact {root.uri(location)} is damaged: {what}.",
        hint="Remove it (nightquant store check lists all such) and run the night again: it is made anew.",
    )
