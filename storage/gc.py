"""``store gc``: remove artifacts that nothing refers to any more, and files that killed writers left behind."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import duckdb

from storage.artifacts import MANIFEST, Artifact, artifacts_in
from storage.errors import StoreError, unwritable
from storage.holder import Holder, hold
from storage.results.catalog import CATALOG, build
from storage.root import Entry, StoreRoot, fsync

# A run's rows refer to its artifacts only after the run has ended, and no night takes this long.
YOUNG_S = 24 * 3600.0
# The next run resumes partial downloads and training; a run a month later hardly ever does.
_UNFINISHED_S = 30 * 24 * 3600.0
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
# Match only names that nightquant writes, so that `store gc` on the wrong folder removes no other files.
_TEMPORARY = re.compile(
    r"artifacts/\.tmp/([0-9a-f]{12}-)?[0-9a-f]{32}/.|\.probe/[0-9a-f]{32}$"
    r"|((results/.*|handoff/[^/]+|reports|\.locks|\.probe)/)?\.[^/]*-[0-9a-f]{32}\.tmp$"
)
_UNFINISHED = re.compile(
    r"work/[0-9a-f]{64}(/.|\.lock$)|downloads/([0-9a-f]{64}(\.part|\.lock)?$|extracted-[a-z0-9_]{8}/.)"
)


@dataclass(frozen=True)
class Collected:
    """Artifacts and files that were removed (or would be, on a dry run), and the number of artifacts that stay."""

    removed: tuple[Artifact, ...]
    leftovers: tuple[Entry, ...]
    kept: int

    @property
    def bytes_freed(self) -> int:
        """Total size of the removed files in bytes."""
        return sum(artifact.size for artifact in self.removed) + sum(entry.size for entry in self.leftovers)


def collect(
    root: StoreRoot | Path | str, keep_nights: int, *, dry_run: bool = False, now: float | None = None
) -> Collected:
    """Remove artifacts that neither a bundle nor a row of the newest nights refers to; rows are never removed.

    Bundles and the rows of each workload's newest `keep_nights` nights keep the artifacts that they name, with
    their inputs and evaluation outputs. An artifact younger than a day at `now` (Unix time) stays as well.

    Raises
    ------
    NightRunningError
        A night holds the store: it may reuse an old artifact that no row names yet. A dry run never raises this.
    StoreError
        There is no store, or it cannot be used.
    """
    root = StoreRoot.of(root)
    if not root.list("results") and not root.list("artifacts"):
        raise StoreError(
            f"There is no store at {root.url}: it holds neither results nor artifacts.",
            hint="Nothing was removed; name the store with --store.",
        )
    now = time.time() if now is None else now
    if dry_run:
        return _collect(root, keep_nights, now, dry_run=True)
    with hold(root, Holder("store gc", "")):
        return _collect(root, keep_nights, now, dry_run=False)


def _collect(root: StoreRoot, keep_nights: int, now: float, *, dry_run: bool) -> Collected:
    artifacts = artifacts_in(root)
    # Collect every digest that a bundle or its pointer names.
    documents = [root.read(entry.name) for entry in root.list("handoff") if entry.name.endswith(".json")]
    bundled = {digest for content in documents for digest in _DIGEST.findall(content.decode("utf-8", "replace"))}
    reachable = _reachable(artifacts, _row_digests(root, keep_nights) | bundled)
    removed = [item for item in artifacts if item.digest not in reachable and item.modified < now - YOUNG_S]
    files = leftovers(root, now - YOUNG_S)
    if not dry_run:
        for artifact in removed:
            _remove(root, artifact)
        for entry in files:
            root.delete(entry.name)
        _remove_emptied_folders(root, files)
    return Collected(tuple(removed), tuple(files), len(artifacts) - len(removed))


def leftovers(root: StoreRoot, before: float) -> list[Entry]:
    """List temporary files last changed before `before` (Unix time), and resumable work a month older than that."""
    kinds = (_TEMPORARY, before), (_UNFINISHED, before - _UNFINISHED_S)
    return [
        entry
        for entry in root.list("")
        if any(pattern.match(entry.name) and entry.modified < oldest for pattern, oldest in kinds)
    ]


def _row_digests(root: StoreRoot, keep_nights: int) -> set[str]:
    # Read the results files, because the catalog may lack a run's last rows.
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        path = Path(scratch) / CATALOG
        build(root, path)
        with duckdb.connect(path, read_only=True) as connection:
            if filesystem := root.filesystem():
                connection.register_filesystem(filesystem)
            rows = connection.execute(_KEPT_ROWS, {"nights": keep_nights}).fetchall()
    return {digest for row in rows for digest in row if digest}


_KEPT_ROWS = """
with kept as (
    select artifact_digest, checkpoint_digest, data_digest
    from measurements
    qualify dense_rank() over (partition by workload order by night desc) <= $nights
), promoted as (
    select artifact_digest, null, null
    from promotions
    qualify dense_rank() over (partition by workload order by night desc) <= $nights
)
from kept union from promoted
"""


def _reachable(artifacts: list[Artifact], roots: set[str]) -> set[str]:
    names = {item.digest: set(_DIGEST.findall(item.manifest.model_dump_json())) for item in artifacts if item.manifest}
    reachable: set[str] = set()
    new = roots & names.keys()
    while new:
        reachable |= new
        new = {digest for name in new for digest in names[name] & names.keys()} - reachable
    # Nothing refers to an evaluation's outputs: they refer to the candidate that was evaluated.
    outputs = {item.digest for item in artifacts if item.kind == "outputs"}
    return reachable | {digest for digest in outputs & names.keys() if names[digest] & reachable}


def _remove_emptied_folders(root: StoreRoot, removed: Iterable[Entry]) -> None:
    if root.local is None:
        return
    for entry in removed:
        # Leave other folders, because a writer may be about to use them.
        if entry.name.startswith(("artifacts/", "work/", "downloads/")):
            own = 3 if entry.name.startswith("artifacts/") else 2  # artifacts/.tmp/<name>, work/<digest>
            with suppress(OSError):  # the folder contains a younger file
                for folder in list(PurePosixPath(entry.name).parents)[:-own]:
                    (root.local / folder).rmdir()


def _remove(root: StoreRoot, artifact: Artifact) -> None:
    if root.local is not None:
        # Rename the folder first: a kill then leaves the artifact complete, or a leftover that the next `store gc`
        # removes, but never an incomplete artifact.
        aside = root.local / "artifacts" / ".tmp" / f"{artifact.digest[:12]}-{uuid.uuid4().hex}"
        try:
            aside.parent.mkdir(exist_ok=True)
            (root.local / artifact.location).rename(aside)
            fsync(aside.parent)  # otherwise a power failure could undo the rename but not the removal
            shutil.rmtree(aside)
        except OSError as error:
            raise unwritable(root.url, error) from error
        return
    # Delete the manifest first: without it the artifact does not exist, even if a kill leaves other files.
    for entry in sorted(artifact.files, key=lambda entry: entry.name != f"{artifact.location}/{MANIFEST}"):
        root.delete(entry.name)
