"""``store gc``: remove artifacts that nothing kept refers to, and what killed writers left."""

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

# A run's artifacts are referred to by its rows only at its end: no night takes this long.
YOUNG_S = 24 * 3600.0
# The next run continues half a download or a training from its last epoch; a much later one hardly ever does.
_UNFINISHED_S = 30 * 24 * 3600.0
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
# Only names that nightquant uses, so that no other files are lost when a folder is mistaken for a store.
_TEMPORARY = re.compile(
    r"artifacts/\.tmp/([0-9a-f]{12}-)?[0-9a-f]{32}/.|\.probe/[0-9a-f]{32}$"
    r"|((results/.*|handoff/[^/]+|reports|\.locks|\.probe)/)?\.[^/]*-[0-9a-f]{32}\.tmp$"
)
_UNFINISHED = re.compile(
    r"work/[0-9a-f]{64}(/.|\.lock$)|downloads/([0-9a-f]{64}(\.part|\.lock)?$|extracted-[a-z0-9_]{8}/.)"
)


@dataclass(frozen=True)
class Collected:
    """What was (or on a dry run would be) removed, and how many artifacts stay."""

    removed: tuple[Artifact, ...]
    leftovers: tuple[Entry, ...]
    kept: int

    @property
    def bytes_freed(self) -> int:
        """Bytes of all that was removed."""
        return sum(artifact.size for artifact in self.removed) + sum(entry.size for entry in self.leftovers)


def collect(
    root: StoreRoot | Path | str, keep_nights: int, *, dry_run: bool = False, now: float | None = None
) -> Collected:
    """Remove artifacts that neither a bundle nor a row of the newest nights refers to; rows are never removed.

    Kept are: what a row of each workload's newest `keep_nights` nights or any file of a bundle names, what those were
    made from, the evaluation outputs of what is kept, and whatever is younger than a day at `now` (Unix time).

    Raises
    ------
    NightRunningError
        A night holds the store: it may use an old artifact again that no row names yet. A dry run does not mind.
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
    # Every digest that a bundle or its pointer mentions.
    documents = [root.read(entry.name) for entry in root.list("handoff") if entry.name.endswith(".json")]
    bundled = {digest for content in documents for digest in _DIGEST.findall(content.decode("utf-8", "replace"))}
    kept = _reachable(artifacts, _row_digests(root, keep_nights) | bundled)
    removed = [item for item in artifacts if item.digest not in kept and item.modified < now - YOUNG_S]
    rest = leftovers(root, now - YOUNG_S)
    if not dry_run:
        for artifact in removed:
            _remove(root, artifact)
        for entry in rest:
            root.delete(entry.name)
        _remove_emptied_folders(root, rest)
    return Collected(tuple(removed), tuple(rest), len(artifacts) - len(removed))


def leftovers(root: StoreRoot, before: float) -> list[Entry]:
    """List temporary files unchanged since `before` (Unix time); resumable downloads and trainings a month later."""
    kinds = (_TEMPORARY, before), (_UNFINISHED, before - _UNFINISHED_S)
    return [
        entry
        for entry in root.list("")
        if any(pattern.match(entry.name) and entry.modified < oldest for pattern, oldest in kinds)
    ]


def _row_digests(root: StoreRoot, keep_nights: int) -> set[str]:
    # From the files, not from the catalog, which may be older than a run's last rows.
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


def _reachable(artifacts: list[Artifact], wanted: set[str]) -> set[str]:
    named = {item.digest: set(_DIGEST.findall(item.manifest.model_dump_json())) for item in artifacts if item.manifest}
    kept: set[str] = set()
    new = wanted & named.keys()
    while new:
        kept |= new
        new = {digest for name in new for digest in named[name] & named.keys()} - kept
    # Nothing refers to an evaluation's outputs: they refer to the candidate that was evaluated.
    outputs = {item.digest for item in artifacts if item.kind == "outputs"}
    return kept | {digest for digest in outputs & named.keys() if named[digest] & kept}


def _remove_emptied_folders(root: StoreRoot, removed: Iterable[Entry]) -> None:
    if root.local is None:
        return
    for entry in removed:
        # Others stay: a writer may be about to put something into them.
        if entry.name.startswith(("artifacts/", "work/", "downloads/")):
            own = 3 if entry.name.startswith("artifacts/") else 2  # artifacts/.tmp/<name>, work/<digest>
            with suppress(OSError):  # something young is in it
                for folder in list(PurePosixPath(entry.name).parents)[:-own]:
                    (root.local / folder).rmdir()


def _remove(root: StoreRoot, artifact: Artifact) -> None:
    if root.local is not None:
        # Moved away in one step: a kill leaves it complete, or as a leftover that the next collection removes, but
        # never half of it where the next night would put it again.
        aside = root.local / "artifacts" / ".tmp" / f"{artifact.digest[:12]}-{uuid.uuid4().hex}"
        try:
            aside.parent.mkdir(exist_ok=True)
            (root.local / artifact.location).rename(aside)
            fsync(aside.parent)  # or a power cut could undo the move and not the removal
            shutil.rmtree(aside)
        except OSError as error:
            raise unwritable(root.url, error) from error
        return
    # The manifest first: without it the artifact does not exist, whatever a kill leaves of the rest.
    for entry in sorted(artifact.files, key=lambda entry: entry.name != f"{artifact.location}/{MANIFEST}"):
        root.delete(entry.name)
