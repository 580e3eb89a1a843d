"""Check a workload's parts and build its candidates before the first run, without training the model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from storage.errors import NightquantError
from tasks.data.outputs import finite_outputs, outputs_of
from tasks.data.weights import build_blank
from tasks.domains import build_model, domain_named
from tasks.domains.checkpoint import obtain
from tasks.environment.libraries import LibraryError, reported_as
from tasks.environment.machine import require_domain
from tasks.environment.user_code import in_its_own_words
from tasks.quantize.coverage import excluded_modules
from tasks.quantize.export import export
from tasks.quantize.source import ModelSource
from tasks.runtimes.base import runtime_named
from tasks.runtimes.build import build_candidate, model_source, open_candidate
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef, DatasetRef
from tasks.values.results import CandidatePreview, Preview
from tasks.workload.base import SeededCheckpoint
from tasks.workload.recipe import METHODS, RUNTIMES, CandidateName, Recipe
from tasks.workload.workload import Workload

TRAINS = "trains on first use"
_FAILED = "Trying out the workload failed"
# To measure a candidate's pace, stop after this many calls or this many seconds.
_CALLS, _LONGEST_S = 5, 5.0


@dataclass
class _Problems:
    """The distinct error messages of a preview, and the tracebacks of unexpected errors."""

    messages: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            with reported_as(_FAILED):
                yield
        except NightquantError as error:
            if str(error) not in self.messages:
                self.messages.append(str(error))
            if isinstance(error, LibraryError):
                self.tracebacks.append(error.in_full())


def preview(workload: Workload, workspace: Workspace) -> Preview:
    """Prepare the data, build and call the model, and read its weights, or use random weights instead of training.

    If a check finds a problem, all other checks still run. The ``job`` of the result is None unless the model works.
    """
    problems = _Problems()
    with redirect_stdout(sys.stderr):  # text printed by the user's code must not mix with the command's output
        for runtime in dict.fromkeys(name for recipe in workload.recipe for name in recipe.runtimes):
            with problems.noted():
                runtime_named(runtime).require_installed(runtime)
        dataset: DatasetRef | None = None
        job: Job[Workload] | None = None
        trains = workload.checkpoint.kind == "train"
        seeded = workload.model_copy(update={"checkpoint": SeededCheckpoint(kind="seeded")})
        with problems.noted():
            require_domain(workload)
            dataset = domain_named(workload.domain).prepare(workload, workspace)
            job = Job(workload, dataset, obtain(seeded if trains else workload, dataset, workspace))
        result = Preview(
            workload=workload.name,
            splits={} if dataset is None else dataset.splits,
            data_notes=() if dataset is None else dataset.notes,
            checkpoint=TRAINS if trains else workload.checkpoint.kind,
            notes=() if job is None else job.checkpoint.notes,
            methods={name: workload.misfit(METHODS[name].needs) for name in METHODS},
            runtimes={name: _missing(name) for name in RUNTIMES},
        )
        if job is not None:
            with problems.noted():
                domain_named(workload.domain).check(job, workspace)
                result = result.model_copy(update=_call_model(job, model_source(job, workspace), workspace))
                result = result.model_copy(update={"job": job})
    return result.model_copy(update={"problems": tuple(problems.messages), "tracebacks": tuple(problems.tracebacks)})


def try_candidate(job: Job[Workload], recipe: Recipe, runtime: str, workspace: Workspace) -> CandidatePreview:
    """Build a recipe's candidate; for runtimes that compile slowly, only export the model."""
    name, source = CandidateName(recipe.name, runtime), model_source(job, workspace)
    excluded_modules(build_blank(partial(build_model, source.architecture)), recipe.exclude)
    runtime_named(runtime).require_installed(runtime)
    if runtime_named(runtime).compiles:
        with reported_as(f"The candidate cannot be built for {runtime}"):
            export(source.float_model(), source.example_inputs, source.axes)
        return CandidatePreview(candidate=name, exported_only=True)
    built = build_candidate(job, recipe, runtime, workspace)
    return CandidatePreview(candidate=name, coverage=built.coverage, built=built)


def pace(job: Job[Workload], candidate: CandidateRef, workspace: Workspace) -> float:
    """Return the duration of a candidate's shortest call, in seconds per row; stop after `_LONGEST_S` seconds."""
    inputs = tuple(model_source(job, workspace).example_inputs.values())
    opened, calls = open_candidate(candidate, workspace, torch.get_num_threads()), list[float]()
    with opened.scope(), torch.inference_mode():
        while len(calls) < _CALLS and sum(calls) < _LONGEST_S:
            began = time.perf_counter()
            opened.call(*inputs)
            calls.append(time.perf_counter() - began)
    return min(calls) / job.workload.benchmark.batch_size


def _call_model(job: Job[Workload], source: ModelSource, workspace: Workspace) -> dict[str, object]:
    domain, model = domain_named(job.workload.domain), source.float_model()
    inputs = source.example_inputs
    with in_its_own_words(f"The model's forward failed on {_formatted(inputs)}", "Fix forward or its inputs."):
        outputs_of(model, inputs)
    outputs = finite_outputs(model, inputs, "float")
    metric = domain.metric(job.workload)
    names = domain.output_names(job, workspace.store)
    names = (*names, *(f"output-{index}" for index in range(len(names), len(outputs))))
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "inputs": _formatted(inputs),
        "outputs": _formatted(dict(zip(names, outputs, strict=False))),
        "metric": metric.name if metric else "",
        "is_percentage": metric is not None and metric.is_percentage,
    }


def _missing(runtime: str) -> str:
    problems = _Problems()
    with problems.noted():
        runtime_named(runtime).require_installed(runtime)
    return "".join(problems.messages)


def _formatted(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(
        f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for name, tensor in tensors.items()
    )
