"""A workload's current bundle, which is measured together with tonight's candidates."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.artifacts import artifact_digest
from storage.bundles import BundleStore
from storage.digest import JsonObject, file_digest
from storage.errors import BundleError, ConfigurationError, UnavailableError
from storage.seal import SUMS, check_sums, parse_sums, read_manifest
from tasks.publish.package import withdrawn_among
from tasks.quantize.spec import spec_of
from tasks.runtimes.base import DOCUMENT, Made, runtime_named
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef
from tasks.values.results import CurrentBundle
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

KIND = "current-bundle"


def find_current(workspace: Workspace, job: Job[Workload], candidates: Sequence[CandidateRef]) -> CurrentBundle | None:
    """Return the workload's current bundle as a candidate, or None if the workload has no current bundle.

    If the bundle's files cannot be used, ``fault`` gives the reason. If this function raises an error, for example
    because this host lacks a package or cannot read the store, the bundle may still exist and be usable.
    """
    bundles = BundleStore(workspace.store.place)
    pointer = bundles.pointer(job.workload.name)
    if pointer is None:
        return None
    withdrawn = withdrawn_among(candidates, job, pointer)
    try:
        folder = bundles.local_folder(job.workload.name, pointer.version)
        sums = check_sums(folder)
        manifest = read_manifest(folder)
        digests = parse_sums(folder, (folder / SUMS).read_bytes())
        recipe, runtime = Recipe.model_validate(manifest["recipe"]), manifest["model"]["runtime"]
        runtime_named(runtime).require_installed(runtime)
        same = next((candidate for candidate in candidates if _is_same(candidate, digests, manifest, workspace)), None)
        deployed = same or _as_candidate(folder, sums, digests, manifest, recipe, workspace)
    except (BundleError, ConfigurationError, LookupError, ValueError) as error:
        if not _is_bundle_fault(error):
            raise
        return CurrentBundle(version=pointer.version, fault=str(error), withdrawn=withdrawn)
    before, now = manifest["sources"]["checkpoint"], job.checkpoint.digest
    changed = f"it was made from checkpoint {before[:12]}, but the workload now has {now[:12]}"
    return CurrentBundle(
        version=pointer.version,
        candidate=deployed,
        made_as=manifest["sources"]["quantized"],
        same_as=same.name if same else None,
        coverage=_recorded(manifest, "coverage"),
        outdated="" if before == now else changed,
        withdrawn=withdrawn,
    )


def _is_bundle_fault(error: Exception) -> bool:
    """Return whether an error was caused by the bundle's bytes, not by this host or a failed read."""
    is_missing = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
    is_unread = isinstance(error.__cause__, OSError) and not is_missing
    return not is_unread and not isinstance(error, UnavailableError)


def _as_candidate(
    folder: Path, sums: str, digests: Mapping[str, str], manifest: JsonObject, recipe: Recipe, workspace: Workspace
) -> CandidateRef:
    runtime, files = manifest["model"]["runtime"], manifest["model"]["files"]
    size = int(_recorded(manifest, "size_bytes") or sum((folder / name).stat().st_size for name in files))
    made_from: dict[str, object] = {"sha256sums": sums}
    digest = artifact_digest(KIND, made_from)
    if workspace.store.find(KIND, digest) is None:
        with workspace.store.create(KIND, digest, made_from) as draft:
            for name in files:
                shutil.copyfile(folder / name, draft / name)
                if file_digest(draft / name) != digests[name]:
                    raise BundleError(f"{folder}: {name} changed while it was being copied.")
            made = Made(size_bytes=size, spec=spec_of(recipe))
            (draft / DOCUMENT).write_text(made.model_dump_json(indent=1), encoding="utf-8")
    return CandidateRef(kind=KIND, digest=digest, recipe=recipe.name, runtime=runtime, size_bytes=size)


def _is_same(candidate: CandidateRef, digests: Mapping[str, str], manifest: JsonObject, workspace: Workspace) -> bool:
    """Return whether the candidate's files equal the bundle's; not every runtime builds reproducible files."""
    if candidate.digest != manifest["sources"]["quantized"]:
        return False
    built = workspace.store.digests(candidate.kind, candidate.digest)
    return all(built.get(name) == digests[name] for name in manifest["model"]["files"])


def _recorded(manifest: JsonObject, column: str) -> float | None:
    """Return a number from the manifest's measurements, or None if the manifest lacks this number."""
    primary = manifest["recipe"]["name"], manifest["model"]["runtime"], "primary"
    for row in manifest["measurements"]:
        if (row["recipe"], row["runtime"], row["setting"]) == primary and isinstance(row.get(column), int | float):
            return float(row[column])
    return None
