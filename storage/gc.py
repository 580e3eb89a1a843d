"""``store gc``: remove artifacts that nothing kept refers to."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import duckdb

from storage.contents import Artifact, artifacts_in, bundle_digests, digests_in, leftovers
from storage.digest import canonical_json
from storage.errors import StoreError, unwritable
from storage.mirror import MANIFEST
from storage.results.catalog import CATALOG, build
from storage.root import Entry, StoreRoot

# What a run has made and not yet referred to in a row: no night takes this long.
YOUNG_S = 24 * 3600.0
# Made from other artifacts and looked up through them: kept as long as the one they describe.
_DESCRIBING = frozenset({"outputs"})


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
    """Remove artifacts that neither a bundle nor a row of the newest nights refers to.

    Kept are: what a row of each workload's newest `keep_nights` nights names, what any file of a bundle names, what
    those were made from, outputs of kept models, and whatever is younger than a day. Rows of results are never removed.

    Parameters
    ----------
    now
        Seconds since 1970; the present by default.

    Raises
    ------
    StoreError
        There is no store, or it cannot be read or written.
    """
    root = StoreRoot.of(root)
    if not root.list("results") and not root.list("artifacts"):
        raise StoreError(
            f"There is no store at {root.url}: it holds neither results nor artifacts.",
            hint="Nothing was removed; name the store with --store.",
        )
    now = time.time() if now is None else now
    artifacts = artifacts_in(root)
    kept = _reachable(artifacts, _row_digests(root, keep_nights) | bundle_digests(root))
    removed = [item for item in artifacts if item.digest not in kept and item.modified < now - YOUNG_S]
    rest = leftovers(root, now - YOUNG_S)
    if not dry_run:
        for artifact in removed:
            _remove(root, artifact)
        for entry in rest:
            root.delete(entry.name)
        _remove_emptied_folders(root, rest)
    return Collected(tuple(removed), tuple(rest), len(artifacts) - len(removed))


def _row_digests(root: StoreRoot, keep_nights: int) -> frozenset[str]:
    # From the files, not from the catalog, which may be older than a run's last rows.
    with tempfile.TemporaryDirectory(prefix="nightquant-") as scratch:
        path = Path(scratch) / CATALOG
        build(root, path)
        with duckdb.connect(path, read_only=True) as connection:
            if root.duckdb_filesystem() is not None:
                connection.register_filesystem(root.duckdb_filesystem())
            rows = connection.execute(_KEPT_ROWS, {"nights": keep_nights}).fetchall()
    return frozenset(digest for row in rows for digest in row if digest)


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


def _reachable(artifacts: list[Artifact], wanted: frozenset[str]) -> set[str]:
    named = {item.digest: digests_in(canonical_json(item.manifest)) for item in artifacts if item.manifest is not None}
    kept: set[str] = set()
    open_ = {digest for digest in wanted if digest in named}
    while open_:
        kept |= open_
        open_ = {digest for name in open_ for digest in named[name] if digest in named} - kept
    models = {item.digest for item in artifacts if item.kind == "quantized"} & kept
    describing = {
        item.digest for item in artifacts if item.kind in _DESCRIBING and named.get(item.digest, frozenset()) & models
    }
    return kept | describing


def _remove_emptied_folders(root: StoreRoot, removed: Iterable[Entry]) -> None:
    if root.local is None:
        return
    # A month's folder stays: a writer may just be about to put something into it.
    for entry in removed:
        if not entry.name.startswith("results/"):
            own = 3 if entry.name.startswith("artifacts/") else 2  # artifacts/.tmp/<name>, work/<digest>
            with suppress(OSError):  # something young is in it
                for folder in list(PurePosixPath(entry.name).parents)[:-own]:
                    (root.local / folder).rmdir()


def _remove(root: StoreRoot, artifact: Artifact) -> None:
    if root.local is not None:
        # Out of its place in one step: a kill leaves it whole, or as a left-over of which the next collection removes
        # the rest, but never half of it where the next night wants to put it again.
        aside = root.local / "artifacts" / ".tmp" / f"{artifact.digest[:12]}-{uuid.uuid4().hex}"
        try:
            aside.parent.mkdir(exist_ok=True)
            (root.local / artifact.location).rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise unwritable(root.url, error) from error
        return
    # The manifest first: without it the artifact does not exist, whatever a kill leaves of the rest.
    for entry in sorted(artifact.files, key=lambda entry: entry.name != f"{artifact.location}/{MANIFEST}"):
        root.delete(entry.name)
