"""Try out a workload before its first run: check the parts, build the candidates, and measure the float model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar, TypeVarTuple

from rich.console import Console

from flows.execution.workers import STARTED, Workers
from flows.reporter import reporter_for
from flows.settings import load_settings, source_of
from storage.errors import NightquantError, StoreError, UnavailableError
from tasks.extensions import METHODS
from tasks.job import Job, Workspace
from tasks.libraries import LibraryError
from tasks.machine import available_cores
from tasks.refs import CandidateRef
from tasks.results import (
    CandidatePreview,
    Evaluation,
    Preview,
    Reference,
)
from tasks.stages import build, evaluate, pace, preview, try_candidate
from tasks.workload import Workload
from tasks.workload.recipe import Recipe

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_LIMIT_S = 900.0  # for data, model and weights, and for the build of one candidate
EVALUATION_S = 60.0  # longest expected duration of one evaluation on a sample
_SAMPLES = (64, 256, 1024)  # 64 if more would take too long; 1024 if a loss on fewer samples may be due to chance
CALIBRATION = 64
_FLOAT = Recipe.model_validate({"name": "float", "method": "none", "runtimes": ["eager"]})
_PENDING = "the trial ended first"


class Run(Protocol):
    """Callable that runs a stage for at most `limit_s` seconds; `label` names the stage in messages."""

    def __call__(
        self,
        stage: Callable[[Workspace, *Ts], R],
        label: str,
        *args: *Ts,
        limit_s: float | None = None,
    ) -> R:
        """Return the stage's result; raise `LostError` if the stage was stopped or its process died."""


@contextmanager
def running(store: str) -> Iterator[Run]:
    """Provide a callable that runs stages in one worker process, and shows each stage on standard error."""
    settings = load_settings()
    default_s = _LIMIT_S if source_of("stage_timeout_s") == "default" else settings.stage_timeout_s
    with ExitStack() as stack:
        reporter = stack.enter_context(reporter_for(Console(stderr=True)))

        def receive(label: str, done: float, total: float, unit: str) -> None:
            if unit != STARTED:
                reporter.progressed(label, done, total, unit)

        workers = stack.enter_context(Workers(1, available_cores(), settings.cache, listener=receive))

        def run(
            stage: Callable[[Workspace, *Ts], R],
            label: str,
            *args: *Ts,
            limit_s: float | None = None,
        ) -> R:
            reporter.started(label)
            began, failure = time.monotonic(), "it was stopped"
            try:
                value = workers.run(stage, label, limit_s or default_s, store, *args)
                failure = ""
                return value
            except NightquantError:
                failure = "the summary gives the reason"
                raise
            finally:
                reporter.finished(label, time.monotonic() - began, failure)

        yield run


def built(workload: Workload, run: Run) -> Preview:
    """Check a workload's parts, build every candidate, and measure the quality of given weights on a sample."""
    found = run(preview, f"{workload.name}: data and model", workload)
    if (job := found.job) is None:
        return found
    candidates, tracebacks, failed = [], list(found.tracebacks), dict[str, list[str]]()
    samples = CALIBRATION if _has_weights(job) else 1
    for recipe, runtime in [(each, runtime) for each in workload.recipe for runtime in each.runtimes]:
        name = f"{recipe.name}/{runtime}"
        try:
            label = f"{workload.name} · {name}: build"
            candidate = run(try_candidate, label, job, recipe.sketch(samples), runtime)
        except StoreError:  # not the candidate's fault
            raise
        except NightquantError as error:
            candidate = CandidatePreview(candidate=name, obstacle=str(error))
            tracebacks += [error.in_full()] if isinstance(error, LibraryError) else []
            # A run skips candidates that this host does not support. Missing packages have already been reported.
            if not isinstance(error, UnavailableError):
                failed.setdefault(str(error), []).append(name)
        candidates.append(candidate)
    problems = (*found.problems, *(f"{', '.join(names)}: {message}" for message, names in failed.items()))
    found = found.model_copy(
        update={"candidates": tuple(candidates), "problems": problems, "tracebacks": tuple(dict.fromkeys(tracebacks))}
    )
    return _with_reference(found, job, run) if _has_weights(job) else found


def _has_weights(job: Job[Workload]) -> bool:
    return job.workload.checkpoint.kind not in ("train", "seeded")


def _with_reference(found: Preview, job: Job[Workload], run: Run) -> Preview:
    """Measure the user's own model in plain torch; add a note if its quality cannot be measured on a sample."""
    label = f"{found.workload} · the float model"
    try:
        candidate = run(build, f"{label}: build", job, _FLOAT, "eager")
        row_s = run(pace, f"{label}: pace", job, candidate, limit_s=EVALUATION_S)
        if not (counts := counts_for(job, row_s)):
            why = f"quality was not compared on a sample: the float model takes {row_s:.2g} s per row"
            return found.model_copy(update={"notes": (*found.notes, why)})
        reference = Reference(candidate=candidate, row_s=row_s, evaluation=evaluated(counts[0], job, candidate, run))
        # On a few samples, a good model can be as bad as a constant answer by chance.
        most = reference.evaluation
        if not most.beats_constant and len(counts) > 1:
            most = evaluated(counts[-1], job, candidate, run)
    except NightquantError as error:  # for example, the sample lacks a class that ``auroc`` needs
        why = f"quality was not compared on a sample: {error.message.rstrip('.')}"
        return found.model_copy(update={"notes": (*found.notes, why)})
    pending = tuple(
        row.model_copy(update={"uncompared": _PENDING}) if _is_comparable(job.workload, row) else row
        for row in found.candidates
    )
    data_notes = found.data_notes
    if not most.beats_constant:
        warning = (
            f"the float model's {most.quality_metric} is {most.quality:.4g} on {most.samples:,} samples, no better "
            f"than the best constant answer ({most.constant_quality:.4g}), so a run holds every candidate; check the "
            "labels, the preprocessing and the weights"
        )
        data_notes = (*data_notes, warning)
    return found.model_copy(update={"candidates": pending, "reference": reference, "data_notes": data_notes})


def _is_comparable(workload: Workload, row: CandidatePreview) -> bool:
    """Return whether the candidate was built as a run would build it, apart from the number of calibration samples."""
    recipe = workload.recipe_named(row.candidate.partition("/")[0])
    return row.built is not None and METHODS[recipe.method].quantizes and recipe.sketch().method == recipe.method


def counts_for(job: Job[Workload], row_s: float) -> tuple[int, ...]:
    """Return the numbers of samples to evaluate in turn, of which all take at most `EVALUATION_S` seconds."""
    available = job.dataset.splits["test"]
    fitting = dict.fromkeys(
        min(count, available) for count in _SAMPLES if min(count, available) * row_s <= EVALUATION_S
    )
    return tuple(fitting)[1:] or tuple(fitting)


def evaluated(count: int, job: Job[Workload], candidate: CandidateRef, run: Run) -> Evaluation:
    """Evaluate a candidate on a sample of the test split."""
    sample = Job(job.workload, job.dataset.model_copy(update={"at_most": count}), job.checkpoint)
    label = f"{job.workload.name} · {candidate.name}: quality on {count:,} samples"
    # The pace was measured in single calls, so allow for a difference.
    return run(evaluate, label, sample, candidate, limit_s=3 * EVALUATION_S)
