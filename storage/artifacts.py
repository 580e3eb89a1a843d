"""The content-addressed artifact store: ``<root>/artifacts/<kind>/<digest[:2]>/<digest>/``.

An artifact is an immutable folder named by the digest of everything that decides its content. It becomes visible in
one rename, when every file in it is on disk and listed, with size and SHA-256, in its ``artifact.json``.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage.digest import digest_of, file_digest
from storage.errors import StoreError, unwritable
from storage.mirror import MANIFEST, ArtifactMirror
from storage.root import StoreRoot, cache_folder, fsync, url_key


class ArtifactStore:
    """Artifacts under a store's root.

    Parameters
    ----------
    place
        The store's root: a folder, made on first write, or the URL of an object store.

    Attributes
    ----------
    place
        What opens this store again: a path or URL.
    root
        The local folder that artifacts are worked with in: the root itself, or for an object store a folder of copies.
    """

    def __init__(self, place: StoreRoot | Path | str) -> None:
        opened = StoreRoot.of(place)
        self.place = opened.url
        self.root = opened.local or cache_folder() / url_key(opened.url)
        self._artifacts = self.root / "artifacts"
        self._mirror = ArtifactMirror(opened, self.root) if opened.local is None else None

    def find(self, kind: str, digest: str) -> Path | None:
        """The artifact's folder, or None where it does not exist; from an object store it is fetched on first use."""
        folder = self._folder(kind, digest)
        if self._mirror is not None and not self._mirror.fetch(folder.relative_to(self.root).as_posix()):
            return None
        return folder if (folder / MANIFEST).is_file() else None

    def path(self, kind: str, digest: str) -> Path:
        """The artifact's folder.

        Raises
        ------
        StoreError
            There is no such artifact.
        """
        found = self.find(kind, digest)
        if found is None:
            raise StoreError(
                f"The store {self.place} has no {kind} artifact {digest[:12]}.",
                hint="It was removed after it was made: run the night again.",
            )
        return found

    @contextmanager
    def create(self, kind: str, digest: str, made_from: Mapping[str, Any]) -> Iterator[Path]:
        """Yield an empty folder to fill; publish it whole when the block ends without an error.

        Where another process published the same artifact meanwhile, its copy stays and this one is dropped: equal
        digests mean equal content. On an error nothing is published and the folder is removed.

        Parameters
        ----------
        made_from
            What the digest was computed from; kept in ``artifact.json`` for people and for ``store check``.

        Raises
        ------
        StoreError
            The store cannot be written.
        """
        final = self._folder(kind, digest)
        work = self._artifacts / ".tmp" / f"{digest[:12]}-{uuid.uuid4().hex}"
        try:
            work.mkdir(parents=True)
        except OSError as error:
            raise unwritable(self.root, error) from error
        try:
            yield work
            self._publish(work, final, kind, digest, made_from)
            if self._mirror is not None:
                self._mirror.upload(final.relative_to(self.root).as_posix())
        except OSError as error:
            # Disk full and lost permissions surface here, whichever write they hit.
            if error.filename is None or str(self.root) in str(error.filename):
                raise unwritable(self.root, error) from error
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def work_folder(self, digest: str) -> Path:
        """A folder for what unfinished work goes on from after a kill; whoever finishes the work removes it.

        Raises
        ------
        StoreError
            The store cannot be written.
        """
        folder = self.root / "work" / digest
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.root, error) from error
        return folder

    def _publish(self, work: Path, final: Path, kind: str, digest: str, made_from: Mapping[str, Any]) -> None:
        files = {
            str(path.relative_to(work)): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
            for path in sorted(work.rglob("*"))
            if path.is_file()
        }
        manifest = {"kind": kind, "digest": digest, "made_from": dict(made_from), "files": files}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        for path in work.rglob("*"):
            fsync(path)
        fsync(work)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            work.rename(final)
        except OSError:
            if (final / MANIFEST).is_file():
                return
            if not final.exists():
                raise
            # Half an artifact, of which a kill or a person removed the rest: out of the way with it.
            aside = work.with_name(f"{digest[:12]}-{uuid.uuid4().hex}")
            final.rename(aside)
            work.rename(final)
            shutil.rmtree(aside, ignore_errors=True)
        fsync(final.parent)

    def _folder(self, kind: str, digest: str) -> Path:
        return self._artifacts / kind / digest[:2] / digest


def artifact_digest(kind: str, made_from: Mapping[str, Any]) -> str:
    """Name an artifact by everything that decides its content."""
    return digest_of({"kind": kind, "made_from": dict(made_from)})
