"""Try out a workload before its first run: check the parts, build the candidates, and compare them on a sample."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple

from rich.console import Console

from flows.execution.workers import STARTED, LostError, StoppedError, Workers, threads_each
from flows.reporter import Reporter, reporter_for
from flows.settings import load_settings
from storage.errors import NightquantError, StoreError, UnavailableError
from storage.results import Row
from tasks.environment.libraries import LibraryError
from tasks.run.stages import build, compare, evaluate, load_makers, pace, preview, try_candidate
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef
from tasks.values.results import (
    NOTICED_LOSS,
    CandidatePreview,
    Comparison,
    Evaluation,
    Preview,
    QualityLoss,
    Reference,
)
from tasks.workload import Workload
from tasks.workload.gate import Gate
from tasks.workload.recipe import CandidateName, Recipe
from tasks.workload.rules import RULES, rows_to_decide

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_LIMIT_S = 900.0  # for data, model and weights, and for the build of one candidate
_EVALUATION_S = 60.0  # longest expected duration of one evaluation on a sample
_SAMPLES = (64, 256, 1024)  # 64 if more would take too long; 1024 if a loss on fewer samples may be due to chance
_CALIBRATION = 64
_FLOAT = Recipe.model_validate({"name": "float", "method": "none", "runtimes": ["eager"]})
_PENDING = "the trial ended first"


@dataclass
class Run:
    """Callable that runs a stage in a worker process, and shows the stage on standard error."""

    workers: Workers
    reporter: Reporter
    store: str
    at_once: int
    default_s: float

    def __call__(self, stage: Callable[[Workspace, *Ts], R], label: str, *args: *Ts, limit_s: float | None = None) -> R:
        """Return the stage's result; raise `LostError` if the stage exceeded `limit_s` or its process died."""
        self.reporter.started(label)
        failure = "it was stopped"
        try:
            value = self.workers.run(stage, label, limit_s or self.default_s, self.store, *args)
            failure = ""
            return value
        except StoppedError:
            raise
        except NightquantError:
            failure = "the message below gives the reason"
            raise
        finally:
            self.reporter.finished(label, failure)

    @contextmanager
    def side_by_side(self) -> Iterator[Executor]:
        """Provide an executor with one thread per worker; at its end, it drops the work that has not begun."""
        threads = ThreadPoolExecutor(self.at_once)
        try:
            yield threads
        finally:
            # After an interruption, the stages end when `running` stops the workers.
            threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def running(store: str) -> Iterator[Run]:
    """Provide a `Run` with as many workers as a night has."""
    settings = load_settings()
    default_s = settings.stage_timeout_s if "stage_timeout_s" in settings.model_fields_set else _LIMIT_S
    with ExitStack() as stack:
        reporter = stack.enter_context(reporter_for(Console(stderr=True)))

        def receive(label: str, done: float, total: float, unit: str) -> None:
            if unit != STARTED:
                reporter.progressed(label, done, total, unit)

        threads = threads_each(settings.workers)
        workers = stack.enter_context(Workers(settings.workers, threads, settings.cache, listener=receive))
        workers.load(load_makers, "loading the runtimes", store)
        yield Run(workers, reporter, store, settings.workers, default_s)


def built(workload: Workload, run: Run) -> Preview:
    """Check a workload's parts, build every candidate, and measure the quality of given weights on a sample."""
    found = run(preview, f"{workload.name}: data and model", workload)
    if (job := found.job) is None:
        return found
    samples = _CALIBRATION if workload.brings_weights else 1

    def tried(name: CandidateName) -> CandidatePreview | NightquantError:
        label, recipe = f"{workload.name} · {name}: build", workload.recipe_named(name.recipe).cheap_variant(samples)
        try:
            return run(try_candidate, label, job, recipe, name.runtime)
        except StoreError:  # not the candidate's fault
            raise
        except NightquantError as error:
            return error

    # Calibration takes longest, so the candidates that need it begin first.
    names = sorted(workload.candidates(), key=lambda name: not workload.recipe_named(name.recipe).needs)
    candidates, tracebacks, failed = [], list(found.tracebacks), dict[str, list[str]]()
    with run.side_by_side() as executor:
        measuring = executor.submit(_with_reference, found, job, run) if workload.brings_weights else None
        trials = {name: executor.submit(tried, name) for name in names}
        for name in workload.candidates():
            result = trials[name].result()
            if isinstance(result, NightquantError):
                tracebacks += [result.in_full()] if isinstance(result, LibraryError) else []
                # A run skips candidates that this host does not support. Missing packages have already been reported.
                if not isinstance(result, UnavailableError):
                    failed.setdefault(str(result), []).append(str(name))
                result = CandidatePreview(candidate=name, obstacle=str(result))
            candidates.append(result)
        if measuring is not None:
            found = measuring.result()
    if found.reference is not None:
        candidates = [
            row.model_copy(update={"uncompared": _PENDING}) if _is_comparable(workload, row) else row
            for row in candidates
        ]
    problems = (*found.problems, *(f"{', '.join(names)}: {message}" for message, names in failed.items()))
    return found.model_copy(
        update={"candidates": tuple(candidates), "problems": problems, "tracebacks": tuple(dict.fromkeys(tracebacks))}
    )


def _with_reference(found: Preview, job: Job[Workload], run: Run) -> Preview:
    """Measure the user's own model in plain torch; add a note if its quality cannot be measured on a sample."""
    label = f"{found.workload} · the float model"
    try:
        candidate = run(build, f"{label}: build", job, _FLOAT, "eager")
        row_s = run(pace, f"{label}: pace", job, candidate, limit_s=_EVALUATION_S)
        if not (counts := _counts_for(job, row_s)):
            why = f"quality was not compared on a sample: the float model takes {row_s:.2g} s per row"
            return found.model_copy(update={"notes": (*found.notes, why)})
        reference = Reference(candidate=candidate, row_s=row_s, evaluation=_evaluated(counts[0], job, candidate, run))
        # On a few samples, a good model can be as bad as a constant answer by chance.
        most = reference.evaluation
        if not most.beats_constant and len(counts) > 1:
            most = _evaluated(counts[-1], job, candidate, run)
    except NightquantError as error:  # for example, the sample lacks a class that ``auroc`` needs
        why = f"quality was not compared on a sample: {error.message.rstrip('.')}"
        return found.model_copy(update={"notes": (*found.notes, why)})
    data_notes = found.data_notes
    if not most.beats_constant:
        warning = (
            f"the float model's {most.quality_metric} is {most.quality:.4g} on {most.samples:,} samples, no better "
            f"than the best constant answer ({most.constant_quality:.4g}), so a run holds every candidate; check the "
            "labels, the preprocessing and the weights"
        )
        data_notes = (*data_notes, warning)
    return found.model_copy(update={"reference": reference, "data_notes": data_notes})


def _is_comparable(workload: Workload, row: CandidatePreview) -> bool:
    """Return whether the candidate was built as a run would build it, apart from the number of calibration samples."""
    recipe = workload.recipe_named(row.candidate.recipe)
    return row.built is not None and recipe.quantizes and recipe.cheap_variant().method == recipe.method


def _counts_for(job: Job[Workload], row_s: float) -> tuple[int, ...]:
    """Return the numbers of samples to evaluate in turn, of which all take at most `_EVALUATION_S` seconds."""
    available = job.dataset.splits["test"]
    fitting = dict.fromkeys(
        min(count, available) for count in _SAMPLES if min(count, available) * row_s <= _EVALUATION_S
    )
    return tuple(fitting)[1:] or tuple(fitting)


def _evaluated(count: int, job: Job[Workload], candidate: CandidateRef, run: Run) -> Evaluation:
    """Evaluate a candidate on a sample of the test split."""
    sample = Job(job.workload, job.dataset.model_copy(update={"at_most": count}), job.checkpoint)
    label = f"{job.workload.name} · {candidate.name}: quality on {count:,} samples"
    # The pace was measured in single calls, so allow for a difference.
    return run(evaluate, label, sample, candidate, limit_s=3 * _EVALUATION_S)


def compared(workload: Workload, found: Preview, run: Run) -> Iterator[Preview]:
    """Compare each comparable candidate with the float model; yield the preview after each comparison.

    `workload` may have another gate than the trial's.
    """
    if found.job is None or found.reference is None:
        return
    job, reference = Job(workload, found.job.dataset, found.job.checkpoint), found.reference
    comparing = _Comparing(job, reference, run, {reference.evaluation.samples: reference.evaluation})
    candidates, problems = list(found.candidates), list(found.problems)
    with run.side_by_side() as executor:
        pending = [
            (index, executor.submit(comparing.compare, row))
            for index, row in enumerate(candidates)
            if row.uncompared and row.built is not None
        ]
        for index, comparison in pending:
            candidates[index] = row = comparison.result()
            if row.obstacle:
                problems.append(f"{row.candidate}: {row.obstacle}")
            yield found.model_copy(update={"candidates": tuple(candidates), "problems": tuple(problems)})


@dataclass
class _Comparing:
    """Comparisons of candidates with the reference, on samples that both evaluate in the time allowed."""

    job: Job[Workload]
    reference: Reference
    run: Run
    _float: dict[int, Evaluation]  # evaluations of the float model, keyed by number of samples
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, row: CandidatePreview) -> CandidatePreview:
        """Return a built candidate's preview with the comparison and any loss, or the reason why neither is known."""
        candidate = row.built
        assert candidate is not None
        label = f"{self.job.workload.name} · {candidate.name}"
        try:
            row_s = self.run(pace, f"{label}: pace", self.job, candidate, limit_s=_EVALUATION_S)
            if not (counts := _counts_for(self.job, max(row_s, self.reference.row_s))):
                return row.model_copy(update={"uncompared": f"it takes {row_s:.2g} s per row"})
            for count in counts:
                before, after = self._reference(count), _evaluated(count, self.job, candidate, self.run)
                (comparison,) = self.run(compare, f"{label}: comparison", before, [after])
                note = undecided(comparison, before, self.job.workload.gate, self.job.dataset.splits["test"])
                row = row.model_copy(update={"undecided": note, "uncompared": ""})
                share, least = _loss(comparison, self.reference)
                if share <= NOTICED_LOSS or least > 0:
                    break
        except StoreError:  # not the candidate's fault
            raise
        except LostError as error:
            return row.model_copy(update={"uncompared": error.message.rstrip(".")})
        except NightquantError as error:
            return CandidatePreview(candidate=row.candidate, obstacle=str(error))
        if share <= NOTICED_LOSS or least <= 0:
            return row
        loss = QualityLoss(
            metric=before.quality_metric,
            higher_is_better=before.higher_is_better,
            before=before.quality,
            after=after.quality,
            share=share,
            samples=before.samples,
        )
        return row.model_copy(update={"loss": loss})

    def _reference(self, count: int) -> Evaluation:
        with self._lock:
            if count not in self._float:
                self._float[count] = _evaluated(count, self.job, self.reference.candidate, self.run)
            return self._float[count]


def undecided(comparison: Comparison, before: Evaluation, gate: Gate, available: int) -> str:
    """Return a note if a test split of `available` samples is too small to decide the gate's rule on quality."""
    rule = RULES["max_quality_drop"]
    row: Row = comparison.model_dump() | {
        "quality_metric": before.quality_metric,
        "higher_is_better": before.higher_is_better,
        "baseline_quality": before.quality,
        "evaluation_samples": before.samples,
    }
    if (bound := rule.bound(gate)) is None:
        return ""
    drop = rule.value_of(gate, row)
    low, high = drop.ends
    if drop.value is None or low is None or high is None or rule.check(gate, row, bound).outcome != "held":
        return ""
    needed = rows_to_decide(drop.value, low, high, bound, before.samples)
    if needed is not None and needed <= available:
        return ""
    many = f"about {needed:,} test samples" if needed else "more test samples than anyone has"
    return f"{many} would decide whether the loss is within max_quality_drop = {bound:g}; there are {available:,}"


def _loss(comparison: Comparison, reference: Reference) -> tuple[float, float]:
    """Return a loss and the lower end of its 95% interval, as fractions of `Reference.unit`; 0 if it is unknown."""
    low, high = comparison.quality_difference_low, comparison.quality_difference_high
    if low is None or high is None or not reference.unit:
        return 0.0, 0.0
    sign, better = (-1, high) if reference.evaluation.higher_is_better else (1, low)
    return sign * comparison.quality_difference / reference.unit, sign * better / reference.unit
