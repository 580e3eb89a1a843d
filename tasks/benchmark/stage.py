"""The stage: a workload's candidates in the store, timed alone on this host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from storage.artifacts import ArtifactStore
from storage.errors import InputError, MeasurementError
from storage.locks import host_lock
from storage.results import Setting as SettingName
from tasks.benchmark.child import Limit
from tasks.benchmark.messages import COPY_SUFFIX, LaunchReport, Memory, Profile, Subject
from tasks.benchmark.protocol import LOCK, Measured, Session
from tasks.benchmark.statistics import percentiles, verdict_of
from tasks.domains import DOMAINS
from tasks.job import Job, Workspace
from tasks.machine import Evidence, fingerprint, observe
from tasks.refs import ArtifactRef, CandidateRef, Frozen
from tasks.results import BenchmarkResult, Timing
from tasks.runtimes.base import CandidateFiles
from tasks.tensor_files import GOLDEN, Golden
from tasks.workload.workload import Benchmark, Workload


class BenchmarkCandidate(Frozen):
    """A candidate to time, and the golden outputs that it must still compute."""

    candidate: CandidateRef
    outputs: ArtifactRef

    def subject(self, workspace: Workspace) -> Subject:
        """Where the child processes find it."""
        files = CandidateFiles.find(self.candidate, workspace.store)
        return Subject(
            name=self.candidate.name,
            folder=str(files.folder),
            shared={kind: str(folder) for kind, folder in files.shared.items()},
            runtime=self.candidate.runtime,
            golden=str(workspace.store.path(self.outputs.kind, self.outputs.digest) / GOLDEN),
        )


@dataclass(frozen=True)
class Setting:
    """Intra-op threads and samples in a call."""

    threads: int
    batch_size: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def benchmark_with_rerun(
    job: Job[Workload],
    candidates: Sequence[BenchmarkCandidate],
    profile: Profile,
    workspace: Workspace,
    *,
    limit_s: float | None = None,
) -> list[BenchmarkResult]:
    """Benchmark, and once more (with a limit of its own) where that was inconclusive and the profile repeats."""
    run = partial(benchmark, job, candidates, profile, workspace, limit_s=limit_s)
    first = run(attempt=1)
    return [first, run(attempt=2)] if profile.repeats and first.verdict == "inconclusive" else [first]


def benchmark(
    job: Job[Workload],
    candidates: Sequence[BenchmarkCandidate],
    profile: Profile,
    workspace: Workspace,
    *,
    limit_s: float | None = None,
    attempt: int = 1,
) -> BenchmarkResult:
    """Time all candidates of a workload against its baseline; always anew, and alone on the host.

    Parameters
    ----------
    limit_s
        Most seconds that it may take from its turn on; waiting for that does not count.
    attempt
        1, or 2 for the rerun after an inconclusive first attempt; it decides the order of the blocks.

    Raises
    ------
    MeasurementError
        The baseline is missing or wrong, a child process died, or `limit_s` was reached, all in the primary setting;
        what goes wrong in a further one is reported in ``refused``.
    """
    workload, settings = job.workload, job.workload.benchmark
    subjects = [candidate.subject(workspace) for candidate in candidates]
    engines = tuple(sorted({workload.recipe_named(each.candidate.recipe).engine for each in candidates}))
    with host_lock(LOCK, on_wait=lambda: workspace.progress(0, profile.launches, "waiting for another benchmark")):
        session = Session(
            settings.baseline,
            profile,
            settings.threads,
            attempt=attempt,
            limit=Limit(limit_s),
            on_launch=lambda done: workspace.progress(done, profile.launches, "launches"),
        )
        began = time.perf_counter()
        before = observe("before", settings.threads, engines)
        measured = session.measure(subjects)
        timed = [subject for subject in subjects if subject.name in measured.names()]
        memory = session.measure_memory(timed, measured.launches[0].modules)
        further, refused = _measure_further(session, timed, job, workspace.store)
        after = observe("after", settings.threads, engines)
        wall_s = time.perf_counter() - began
    aa = measured.aa_ratio()
    timings = list(_timings(measured, settings.batch_size, "primary", memory.memory))
    for setting, found in further.items():
        timings += _timings(found, setting.batch_size, "throughput", {})
    return BenchmarkResult(
        workload=workload.name,
        baseline=settings.baseline,
        profile=profile.name,
        attempt=attempt,
        verdict=verdict_of(aa),
        aa_ratio=aa.value,
        aa_low=aa.low,
        aa_high=aa.high,
        fingerprint=fingerprint(),
        timings=tuple(timings),
        refused=measured.refused | _labelled("memory", memory.refused) | refused,
        evidence_before=before.model_dump_json(),
        evidence_after=_with_launches(after, measured.launches).model_dump_json(),
        wall_s=wall_s,
        timed_s=measured.timed_s + sum(found.timed_s for found in further.values()),
    )


def further_settings(benchmark: Benchmark) -> list[Setting]:
    """Every requested batch size with every requested thread count, except the setting that is timed anyway."""
    primary = Setting(benchmark.threads, benchmark.batch_size)
    batch_sizes = benchmark.batch_sizes or (benchmark.batch_size,)
    thread_counts = benchmark.thread_counts or (benchmark.threads,)
    settings = [Setting(threads, batch_size) for threads in thread_counts for batch_size in batch_sizes]
    return [setting for setting in dict.fromkeys(settings) if setting != primary]


@contextmanager
def subjects_at(
    batch_size: int, subjects: Sequence[Subject], job: Job[Workload], store: ArtifactStore
) -> Iterator[list[Subject]]:
    """The subjects with inputs of another batch size in a temporary file, without outputs: none were evaluated."""
    if batch_size == job.workload.benchmark.batch_size:
        yield list(subjects)
        return
    inputs = DOMAINS[job.workload.domain].example_inputs(job.workload, job.dataset, store, batch_size)
    with TemporaryDirectory(prefix="nightquant-") as folder:
        path = Path(folder) / GOLDEN
        path.write_bytes(Golden(inputs).to_bytes())
        yield [subject.model_copy(update={"golden": str(path)}) for subject in subjects]


def _measure_further(
    session: Session, subjects: Sequence[Subject], job: Job[Workload], store: ArtifactStore
) -> tuple[dict[Setting, Measured], dict[str, str]]:
    """Measure every further setting; also return what was refused in one, or why nothing was timed in it."""
    found: dict[Setting, Measured] = {}
    refused: dict[str, str] = {}
    for setting in further_settings(job.workload.benchmark):
        try:
            with subjects_at(setting.batch_size, subjects, job, store) as there:
                measured = replace(session, threads=setting.threads).measure(there, with_copy=False)
        except (MeasurementError, InputError) as error:
            # What was timed so far is right without it, and the primary setting is what decides.
            refused |= _labelled(setting, {"every candidate": str(error)})
        else:
            found[setting] = measured
            refused |= _labelled(setting, measured.refused)
    return found, refused


def _labelled(where: object, refused: dict[str, str]) -> dict[str, str]:
    return {f"{name} ({where})": reason for name, reason in refused.items()}


def _timings(measured: Measured, batch_size: int, setting: SettingName, memory: dict[str, Memory]) -> Iterator[Timing]:
    """One row for each subject; that of the baseline's copy has the setting ``a/a``."""
    for name in measured.names():
        reports, blocks, ratio = measured.of(name), measured.block_s(name), measured.ratio(name)
        lower, median, upper = np.quantile(blocks, [0.25, 0.5, 0.75])
        p50_s, p90_s, p99_s = percentiles(measured.single_s(name))
        recipe, _, runtime = name.removesuffix(COPY_SUFFIX).partition("/")
        launches, rounds = blocks.shape
        yield Timing(
            recipe=recipe,
            runtime=runtime,
            setting="a/a" if name.endswith(COPY_SUFFIX) else setting,
            threads=measured.threads,
            batch_size=batch_size,
            latency_s=float(median),
            latency_q25_s=float(lower),
            latency_q75_s=float(upper),
            baseline_latency_s=float(np.median(measured.block_s(measured.baseline))),
            speedup=ratio.value,
            speedup_low=ratio.low,
            speedup_high=ratio.high,
            blocks=blocks.size,
            calls_per_block=reports[0].calls_per_block,
            # The first launch's loads include imports, which later launches do beforehand.
            load_s=float(np.median([report.load_s for report in reports[1:] or reports])),
            first_call_s=float(np.median([report.first_call_s for report in reports])),
            latency_p50_s=p50_s,
            latency_p90_s=p90_s,
            latency_p99_s=p99_s,
            **(memory[name].model_dump() if name in memory else {}),
            block_launch=tuple(launch for launch in range(1, launches + 1) for _ in range(rounds)),
            block_round=tuple(range(1, rounds + 1)) * launches,
            block_s=tuple(blocks.ravel().tolist()),
        )


def _with_launches(evidence: Evidence, launches: Sequence[LaunchReport]) -> Evidence:
    return evidence.model_copy(
        update={
            "capability": launches[0].capability,
            "supported_engines": launches[0].engines,
            "launch_affinity": launches[0].affinity,
            "involuntary_switches": sum(launch.involuntary_switches for launch in launches),
            "voluntary_switches": sum(launch.voluntary_switches for launch in launches),
            "start_s": tuple(launch.start_s for launch in launches),
            "first_block_s": tuple(launch.first_block_s for launch in launches),
        }
    )
