"""Remove unreferenced artifacts, old search journals, and files left by killed writers (``nightquant store gc``)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts import MANIFEST, Artifact, artifacts_in
from storage.errors import StoreError
from storage.holder import Holder, hold
from storage.journal import old_journals
from storage.local_root import LocalRoot
from storage.results.query import open_catalog
from storage.root import Entry, StoreRoot, cache_folder

# Rows refer to a run's artifacts only after the run has ended, and every run ends within a day.
YOUNG_S = 24 * 3600.0
# Runs resume interrupted training and searches, but hardly ever after a month.
_UNFINISHED_S = 30 * 24 * 3600.0
_ABOUT_CANDIDATES = ("outputs", "evaluation", "proof", "memory")
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
# Match only names that nightquant writes, so that `store gc` on the wrong folder does not remove other files.
_TEMPORARY = re.compile(
    r"artifacts/\.tmp/([0-9a-f]{12}-)?[0-9a-f]{32}/.|(handoff/\.tmp|drafts)/[0-9a-f]{32}/.|\.probe/[0-9a-f]{32}$"
    r"|((results/.*|handoff/[^/]+|reports|searches/[^/]+|\.?locks|\.probe)/)?\.[^/]*-[0-9a-f]{32}\.tmp$"
)
_UNFINISHED = re.compile(
    r"work/[0-9a-f]{64}(/.|\.lock$)|downloads/([0-9a-f]{64}(\.part|\.lock)?$|extracted-[a-z0-9_]{8}/.)"
)
_BUNDLE_COPY = re.compile(r"bundles/[0-9a-f]{16}/.")


@dataclass(frozen=True)
class Collected:
    """What was removed (or, in a dry run, selected); ``cached`` lists files in this host's cache of an object store."""

    removed: tuple[Artifact, ...]
    leftovers: tuple[Entry, ...]
    kept: int
    cached: tuple[Entry, ...] = ()

    @property
    def bytes_freed(self) -> int:
        """Total size of the removed files in bytes."""
        return sum(artifact.size for artifact in self.removed) + sum(entry.size for entry in self.leftovers)


def collect(
    root: StoreRoot | Path | str, keep_nights: int, *, dry_run: bool = False, now: float | None = None
) -> Collected:
    """Remove artifacts that no bundle and no row from the latest nights references; never remove rows.

    The rows of each workload's latest `keep_nights` nights count. The inputs, the evaluation, the proof and the memory
    of a referenced artifact are also kept, and so are artifacts that are less than a day old at `now` (Unix time).
    Raise `NightRunningError` if a run is using the store, because the run may reuse an artifact that no row refers to
    yet.
    """
    root = StoreRoot.of(root)
    if not root.list("results") and not root.list("artifacts"):
        raise StoreError(
            f"There is no store at {root.url}: neither results nor artifacts were found.",
            hint="Nothing was removed. Give the path or URL of the store with --store.",
        )
    now = time.time() if now is None else now
    if dry_run:
        return _collect(root, keep_nights, now, dry_run=True)
    with hold(root, Holder("store gc", "")):
        return _collect(root, keep_nights, now, dry_run=False)


def _collect(root: StoreRoot, keep_nights: int, now: float, *, dry_run: bool) -> Collected:
    artifacts = artifacts_in(root)
    # Collect every digest in the JSON files of bundles and pointers.
    documents = [root.read(entry.name) for entry in root.list("handoff") if entry.name.endswith(".json")]
    text = b"\n".join(documents).decode("utf-8", "replace")
    bundled = set(_DIGEST.findall(text))
    reachable = _reachable(artifacts, _row_digests(root, keep_nights) | bundled)
    removed = [item for item in artifacts if item.digest not in reachable and item.modified < now - YOUNG_S]
    files = leftovers(root, now - YOUNG_S) + old_journals(root, now - _UNFINISHED_S)
    cached: list[Entry] = []
    if not dry_run:
        _remove_all(root, removed, files)
    if root.local is None:
        cache = LocalRoot(cache_folder(root.url))
        copies, loose = _unneeded_copies(cache, artifacts, removed, now)
        cached = [entry for copy in copies for entry in copy.files] + loose
        if not dry_run:
            _remove_all(cache, copies, loose)
    return Collected(tuple(removed), tuple(files), len(artifacts) - len(removed), tuple(cached))


def _unneeded_copies(
    cache: LocalRoot, stored: Iterable[Artifact], removed: Iterable[Artifact], now: float
) -> tuple[list[Artifact], list[Entry]]:
    """List a cache's copies of artifacts that the store does not keep, and its old files."""
    kept = {item.location for item in stored} - {item.location for item in removed}
    copies = [item for item in artifacts_in(cache) if item.location not in kept and item.modified < now - YOUNG_S]
    # A copy of a bundle that is still in use is downloaded again.
    old = [entry for entry in cache.list("bundles") if entry.modified < now - _UNFINISHED_S]
    bundles = [entry for entry in old if _BUNDLE_COPY.match(entry.name)]
    return copies, leftovers(cache, now - YOUNG_S) + bundles


def leftovers(root: StoreRoot, before: float) -> list[Entry]:
    """List temporary files older than `before` (Unix time), and resumable work at least a month older than `before`."""

    def is_left(entry: Entry) -> bool:
        if _UNFINISHED.match(entry.name) and entry.modified < before - _UNFINISHED_S:
            return True
        return bool(_TEMPORARY.match(entry.name)) and entry.modified < before

    return list(filter(is_left, root.list("")))


def _row_digests(root: StoreRoot, keep_nights: int) -> set[str]:
    with open_catalog(root, fresh=True) as connection:
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
    # Outputs, evaluations and proofs refer to their candidate, but not vice versa. Keep the outputs, evaluations and
    # proofs of reachable candidates.
    about = {item.digest for item in artifacts if item.kind in _ABOUT_CANDIDATES}
    return reachable | {digest for digest in about & names.keys() if names[digest] & reachable}


def _remove_all(root: StoreRoot, artifacts: Iterable[Artifact], files: Iterable[Entry]) -> None:
    for artifact in artifacts:
        # Delete the manifest first, because an artifact without a manifest counts as missing even if files remain.
        for entry in sorted(artifact.files, key=lambda entry: entry.name != f"{artifact.location}/{MANIFEST}"):
            root.delete(entry.name)
    for entry in files:
        root.delete(entry.name)
