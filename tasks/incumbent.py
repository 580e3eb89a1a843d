"""The incumbent: a workload's current bundle, whose own files are measured beside tonight's candidates."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.artifacts import artifact_digest
from storage.bundles import BundleStore
from storage.digest import JsonObject, file_digest
from storage.errors import BundleError, ConfigurationError, StoreError, UnavailableError
from storage.seal import check_sums, listed, read_manifest
from tasks.extensions import RUNTIMES
from tasks.job import Job, Workspace
from tasks.refs import CandidateRef
from tasks.results import Incumbent
from tasks.runtimes.base import DOCUMENT, Made
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

KIND = "incumbent"


def find_incumbent(job: Job[Workload], candidates: Sequence[CandidateRef], workspace: Workspace) -> Incumbent | None:
    """Look up the workload's current bundle and make its files a candidate again; None if there is no bundle.

    A bundle whose own files cannot be used (they are damaged, or this version has no such runtime) is returned with the
    reason as its ``fault``. Any error means that the bundle is unknown, which is not the same as bad or none.

    Parameters
    ----------
    candidates
        Tonight's candidates, one of which may be the current bundle itself.

    Raises
    ------
    StoreError
        The store cannot be read or written, or its pointer to the bundle is damaged.
    UnavailableError
        This machine lacks the package of the bundle's runtime.
    BundleError
        The operating system refuses to read the bundle.
    """
    bundles = BundleStore(workspace.store.place)
    pointer = bundles.pointer(job.workload.name)
    if pointer is None:
        return None
    try:
        folder = bundles.local_folder(job.workload.name, pointer.version)
        sums = check_sums(folder)
        manifest = read_manifest(folder, sums)
        digests = listed(folder, sums)
        if missing := [name for name in manifest["model"]["files"] if name not in digests]:
            raise BundleError(f"{folder}: its manifest names {missing[0]!r}, which is not in the bundle.")
        recipe, runtime = Recipe.model_validate(manifest["recipe"]), manifest["model"]["runtime"]
        RUNTIMES[runtime].require_installed(runtime)
        same = next((each for each in candidates if _is_same(each, digests, manifest, workspace)), None)
        deployed = same or _as_candidate(folder, sums, digests, manifest, recipe, workspace)
    except (BundleError, ConfigurationError, ValueError) as error:
        if not _lies_in_the_bundle(error):
            raise
        return Incumbent(version=pointer.version, fault=str(error))
    checkpoint = manifest["sources"]["checkpoint"]
    return Incumbent(
        version=pointer.version,
        candidate=deployed,
        made_as=manifest["sources"]["quantized"],
        same_as=same.name if same else "",
        coverage=_measured(manifest, "coverage"),
        outdated=""
        if checkpoint == job.checkpoint.digest
        else f"it was made from checkpoint {checkpoint[:12]}, and the workload's is {job.checkpoint.digest[:12]} now",
    )


def _lies_in_the_bundle(error: Exception) -> bool:
    """Whether an error comes from the bundle's own bytes, and not from this machine or from reading them."""
    is_unread = isinstance(error.__cause__, OSError) and not isinstance(
        error.__cause__, FileNotFoundError | NotADirectoryError
    )
    return not is_unread and not isinstance(error, UnavailableError)


def _as_candidate(
    folder: Path,
    sums: str,
    digests: Mapping[str, str],
    manifest: JsonObject,
    recipe: Recipe,
    workspace: Workspace,
) -> CandidateRef:
    runtime, files = manifest["model"]["runtime"], manifest["model"]["files"]
    size = int(_measured(manifest, "size_bytes") or sum((folder / name).stat().st_size for name in files))
    made_from: dict[str, object] = {"sha256sums": sums}
    digest = artifact_digest(KIND, made_from)
    known = workspace.store.find(KIND, digest)
    if known is not None and any(file_digest(known / name) != digests[name] for name in files):
        # The copy is wrong, not the bundle, about which it says nothing.
        raise StoreError(f"{known}: its files are not those of the bundle.", hint="Remove the folder.")
    if known is None:
        with workspace.store.create(KIND, digest, made_from) as draft:
            for name in files:
                shutil.copyfile(folder / name, draft / name)
                if file_digest(draft / name) != digests[name]:
                    raise BundleError(f"{folder}: {name} changed while it was copied.")
            made = Made(size_bytes=size, recipe=recipe.model_dump(mode="json"))
            (draft / DOCUMENT).write_text(made.model_dump_json(indent=1), encoding="utf-8")
    return CandidateRef(kind=KIND, digest=digest, recipe=recipe.name, runtime=runtime, size_bytes=size)


def _is_same(candidate: CandidateRef, digests: Mapping[str, str], manifest: JsonObject, workspace: Workspace) -> bool:
    """Whether tonight's candidate has the very bytes: made anew, equal recipes give other bytes in some runtimes."""
    if candidate.digest != manifest["sources"]["quantized"]:
        return False
    made = workspace.store.path(candidate.kind, candidate.digest)
    return all(file_digest(made / name) == digests[name] for name in manifest["model"]["files"])


def _measured(manifest: JsonObject, column: str) -> float | None:
    """Return a number that was measured when the bundle was made; None if its manifest lacks it."""
    made = manifest["recipe"]["name"], manifest["model"]["runtime"], "primary"
    rows = (row for row in manifest["measurements"] if (row["recipe"], row["runtime"], row["setting"]) == made)
    found = [row.get(column) for row in rows]
    return next((float(value) for value in found if isinstance(value, int | float)), None)
