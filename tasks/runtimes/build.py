"""Find a job's candidates in the store by digest; build and store missing candidates."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from tasks.data.weights import load_checkpoint
from tasks.domains import build_model, domain_named
from tasks.environment.libraries import reported_as
from tasks.environment.sources import code_digest, model_digest
from tasks.quantize.source import ModelSource, without_parametrizations
from tasks.quantize.spec import spec_of
from tasks.runtimes.base import DOCUMENT, CandidateFiles, Opened, runtime_named
from tasks.values.job import Job, Workspace
from tasks.values.refs import Architecture, CandidateRef
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

KIND = "candidate"


def model_source(job: Job[Workload], workspace: Workspace) -> ModelSource:
    """Return the inputs for building a job's candidates, as plain values without domain-specific types."""
    workload, dataset, store = job.workload, job.dataset.as_prepared(), workspace.store
    domain = domain_named(workload.domain)
    architecture = Architecture(
        domain=workload.domain,
        model=workload.model.model_dump(mode="json"),
        folder=workload.model.folder,
        dataset=dataset,
    )
    examples = domain.example_inputs(workload, dataset, store, workload.benchmark.batch_size)

    def float_model() -> nn.Module:
        model = domain.build(workload.model, dataset)
        load_checkpoint(model, job.checkpoint, store)
        return without_parametrizations(model.eval())

    return ModelSource(
        name=workload.name,
        float_model=float_model,
        example_inputs=examples,
        axes=domain.axes(workload, examples),
        architecture=architecture,
        made_from={
            "checkpoint": job.checkpoint.digest,
            # Calibration and training depend on the samples, and every model depends on the number of classes or words.
            "dataset": dataset.digest,
            "model": architecture.model,
            "example_inputs": workload.benchmark.model_dump(mode="json", include={"batch_size", "sequence_length"}),
            "torch": torch.__version__,
            "code": model_digest(build_model(architecture), workload.model, domain.build, domain.example_inputs),
        },
        workspace=workspace,
        calibration=partial(domain.calibration, job, store) if "calibration" in workload.provides else None,
        fine_tuning=partial(domain.fine_tuning, job, store) if "fine-tuning" in workload.provides else None,
    )


def build_candidate(job: Job[Workload], recipe: Recipe, runtime: str, workspace: Workspace) -> CandidateRef:
    """Return a recipe's candidate for a runtime; build the candidate if the store lacks it."""
    with reported_as(f"The candidate cannot be built for {runtime}"):
        return _find_or_build(job, recipe, runtime, workspace)


def _find_or_build(job: Job[Workload], recipe: Recipe, runtime: str, workspace: Workspace) -> CandidateRef:
    implementation, spec = runtime_named(runtime), spec_of(recipe)
    implementation.require_installed(runtime)
    source = model_source(job, workspace)
    maker = implementation.maker()
    shared = maker.shared(source, spec)
    # The calibration code affects the result if the runtime has its own quantizer.
    code = code_digest(type(maker).__module__, *source.code_of(spec), __name__)
    made_from = {
        **source.made_from,
        "spec": spec.content(),
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
            made = maker.make(source, spec, folder)
            made = made.model_copy(update={"spec": spec})
            (folder / DOCUMENT).write_text(made.model_dump_json(indent=1), encoding="utf-8")
    else:
        made = CandidateFiles(folder, {}).made()
    return CandidateRef(
        kind=KIND,
        digest=digest,
        recipe=recipe.name,
        runtime=runtime,
        size_bytes=made.size_bytes,
        coverage=made.coverage,
        notes=made.notes,
        shared=shared,
        recipe_digest=digest_of(recipe.content()),
        source_digest=code,
    )


def open_candidate(candidate: CandidateRef, workspace: Workspace, threads: int) -> Opened:
    """Open a candidate, which runs on `threads` threads and which any number of threads may call."""
    files = CandidateFiles.find(candidate, workspace.store)
    return runtime_named(candidate.runtime).opener().open(files, threads)
