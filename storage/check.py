"""Find problems in a store, and suggest a remedy for each one (``nightquant store check``)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from storage.artifacts import MANIFEST, Artifact, artifact_digest, artifacts_in
from storage.bundles import BundleStore
from storage.errors import BundleError, ConfigurationError, StoreError
from storage.gc import leftovers
from storage.results.layout import folder, read_rows
from storage.results.tables import TABLES, Table
from storage.root import Entry, StoreRoot
from storage.seal import SUMS, check_sums

_ABANDONED_S = 3600.0  # writers touch their files at least once an hour


@dataclass(frozen=True)
class Problem:
    """A problem in a store, and its remedy."""

    where: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Checked:
    """The numbers of results files and artifacts that were checked, and the problems that were found."""

    results_files: int
    artifacts: int
    problems: tuple[Problem, ...]


def check(root: StoreRoot | Path | str) -> Checked:
    """Read and check every results file, artifact and bundle of a store."""
    root = StoreRoot.of(root)
    artifacts = artifacts_in(root)
    files = [(table, entry) for table in TABLES.values() for entry in root.list(folder(table))]
    problems = [problem for table, entry in files for problem in _check_results_file(root, table, entry)]
    for artifact in artifacts:
        problems += _check_artifact(root, artifact)
    problems += _check_bundles(root)
    problems += [
        Problem(entry.name, "is left over from a killed writer", "Run: nightquant store gc")
        for entry in leftovers(root, time.time() - _ABANDONED_S)
    ]
    return Checked(len(files), len(artifacts), tuple(problems))


def _check_results_file(root: StoreRoot, table: Table, entry: Entry) -> Iterator[Problem]:
    name = PurePosixPath(entry.name)
    if name.suffix == ".tmp":
        return
    if name.suffix != ".parquet":
        yield Problem(entry.name, "does not belong here", "Move the file out of the store.")
        return
    remedy = "Move the file out of the store, then run: nightquant store compact (which rebuilds the catalog)."
    try:
        read_rows(root, table, entry.name)
    except StoreError as error:
        yield Problem(entry.name, f"cannot be read: {error.__cause__ or error}", remedy)


def _check_artifact(root: StoreRoot, artifact: Artifact) -> Iterator[Problem]:
    remedy = "Remove the folder; the next run rebuilds the artifact."
    if artifact.manifest is None:
        yield Problem(artifact.location, f"has no readable {MANIFEST}", remedy)
        return
    listed = artifact.manifest.files
    present = {entry.name.removeprefix(f"{artifact.location}/") for entry in artifact.files} - {MANIFEST}
    for name in sorted(present - set(listed)):
        yield Problem(f"{artifact.location}/{name}", "is not in the manifest", "Remove the file.")
    for name in sorted(set(listed) - present):
        yield Problem(f"{artifact.location}/{name}", "is missing", remedy)
    for name in sorted(present & set(listed)):
        if root.digest(f"{artifact.location}/{name}") != listed[name].sha256:
            yield Problem(f"{artifact.location}/{name}", "was changed: its digest differs", remedy)
    expected = artifact_digest(artifact.manifest.kind, artifact.manifest.made_from)
    if {expected, artifact.manifest.digest} != {artifact.digest} or artifact.manifest.kind != artifact.kind:
        yield Problem(artifact.location, "does not have the digest of its inputs as its name", remedy)


def _check_bundles(root: StoreRoot) -> Iterator[Problem]:
    bundles = BundleStore(root)
    folders: defaultdict[str, list[Entry]] = defaultdict(list)
    pointers = []
    for entry in root.list("handoff"):
        parts = PurePosixPath(entry.name).parts
        if parts[1] == ".tmp":
            continue
        if len(parts) > 3:
            folders["/".join(parts[:3])].append(entry)
        elif parts[-1] == "current.json":
            pointers.append(entry.name)
    sums: dict[str, str] = {}
    for location, files in folders.items():
        if f"{location}/{SUMS}" not in {entry.name for entry in files}:
            # An upload to an object store writes ``SHA256SUMS`` last, so a recent folder may be an upload in progress.
            if root.local is not None or max(entry.modified for entry in files) < time.time() - _ABANDONED_S:
                yield Problem(location, f"has no {SUMS}, so it is not a bundle", "Remove the folder.")
            continue
        try:
            with bundles.opened(location) as copy:
                sums[location] = check_sums(copy)
        except BundleError as error:
            description = f"differs from the published bundle: {error.message.partition(': ')[2].rstrip('.')}"
            remedy = "Do not deploy this bundle. Restore it from a backup, or run: nightquant handoff rollback"
            yield Problem(location, description, remedy)
    for name in pointers:
        yield from _check_pointer(bundles, name, folders, sums)


def _check_pointer(
    bundles: BundleStore, name: str, folders: Mapping[str, object], sums: Mapping[str, str]
) -> Iterator[Problem]:
    base = str(PurePosixPath(name).parent)
    workload = PurePosixPath(base).name
    try:
        pointer = bundles.pointer(workload)
    except (StoreError, ConfigurationError) as error:
        yield Problem(name, f"cannot be used: {error.message.rstrip('.')}", error.hint or "Remove the folder.")
        return
    if pointer is None:
        return  # the pointer was removed after the listing
    if f"{base}/{pointer.version}" not in folders:
        rollback = f"nightquant handoff rollback {workload} --to VERSION --reason …"
        description = f"names the bundle {pointer.version}, which does not exist"
        yield Problem(name, description, f"Restore the bundle from a backup, or run: {rollback}")
    recorded = {switch.version: switch.sha256sums for switch in pointer.history} | {pointer.version: pointer.sha256sums}
    for version, digest in sorted(recorded.items()):
        if sums.get(f"{base}/{version}", digest) != digest:
            description = f"differs from the published bundle: {name} recorded another {SUMS}"
            remedy = "Do not deploy this bundle. Restore it from a backup, or remove the folder."
            yield Problem(f"{base}/{version}", description, remedy)
