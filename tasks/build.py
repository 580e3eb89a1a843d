"""Building candidates: found by digest, or made by their runtime and written."""

from __future__ import annotations

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from tasks.job import Job, Workspace
from tasks.libraries import hint_for, reported_as
from tasks.quantize.methods import METHODS
from tasks.quantize.source import ModelSource
from tasks.refs import CandidateRef
from tasks.runtimes import RUNTIMES
from tasks.runtimes.base import DOCUMENT, CandidateFiles, Opened
from tasks.sources import code_digest
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

KIND = "candidate"


def build_candidate(job: Job[Workload], recipe: Recipe, runtime: str, workspace: Workspace) -> CandidateRef:
    """Carry a recipe out for a runtime, or find what was made before.

    Raises
    ------
    UnavailableError
        What the runtime needs is not installed, or the processor lacks instructions.
    QuantizationError
        The recipe cannot be carried out on this model or processor, or its result computes NaN or infinities.
    LibraryError
        A library failed in another way.
    """
    with reported_as("The candidate cannot be built", hint_for(runtime)):
        return _find_or_build(job, recipe, runtime, workspace)


def _find_or_build(job: Job[Workload], recipe: Recipe, runtime: str, workspace: Workspace) -> CandidateRef:
    implementation = RUNTIMES[runtime]
    implementation.require_installed(runtime)
    source = ModelSource(job, workspace)
    shared = implementation.shared(source, recipe)
    method = METHODS[recipe.method]
    # Runtimes that quantize by themselves calibrate as well.
    data = [source.calibrator.calibration] if method.needs else []
    code = code_digest(type(implementation).__module__, type(method).__module__, __name__, *data)
    made_from = {
        **source.made_from,
        "recipe": recipe.content(),
        "runtime": runtime,
        "environment": implementation.environment(),
        "shared": shared,
        "axes": {name: dict(axes) for name, axes in source.axes.items()},
        "building": code,
    }
    digest = artifact_digest(KIND, made_from)
    folder = workspace.store.find(KIND, digest)
    if folder is None:
        with workspace.store.create(KIND, digest, made_from) as folder:
            made = implementation.make(source, recipe, folder)
            made = made.model_copy(update={"recipe": recipe.model_dump(mode="json")})
            (folder / DOCUMENT).write_text(made.model_dump_json(indent=1), encoding="utf-8")
    else:
        made = CandidateFiles(folder, {}).made()
    return CandidateRef(
        kind=KIND,
        digest=digest,
        recipe=recipe.name,
        runtime=runtime,
        graph=made.graph,
        size_bytes=made.size_bytes,
        coverage=made.coverage,
        shared=shared,
        recipe_digest=digest_of(recipe.content()),
        source_digest=code,
    )


def open_candidate(candidate: CandidateRef, workspace: Workspace, threads: int) -> Opened:
    """Open a candidate for calls on `threads` threads."""
    return RUNTIMES[candidate.runtime].open(CandidateFiles.find(candidate, workspace.store), threads)
