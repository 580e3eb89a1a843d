"""The stage: a workload's candidates in the store, timed alone on this host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from storage.errors import InputError, MeasurementError
from storage.locks import host_lock
from tasks.benchmark.children import Limit
from tasks.benchmark.messages import LaunchReport, Subject
from tasks.benchmark.profile import Profile, profile_named
from tasks.benchmark.protocol import Measured, measure, measure_memory
from tasks.benchmark.result import aa_ratio, timings_of, verdict_of
from tasks.benchmark.throughput import further_settings, subjects_at
from tasks.golden import GOLDEN
from tasks.job import Job, Workspace
from tasks.machine import Evidence, fingerprint, observe
from tasks.refs import ArtifactRef, CandidateRef, Frozen
from tasks.results import BenchmarkResult, Timing
from tasks.runtimes.base import CandidateFiles
from tasks.workload.workload import Workload

LOCK = "benchmark"


class BenchmarkCandidate(Frozen):
    """A candidate to time, and the golden outputs that it must still give."""

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


def benchmark(
    job: Job[Workload],
    candidates: Sequence[BenchmarkCandidate],
    profile: Profile | str,
    workspace: Workspace,
    *,
    limit_s: float | None = None,
    attempt: int = 1,
) -> BenchmarkResult:
    """Time all candidates of a workload against its baseline; always anew.

    Only one benchmark runs on a host at a time; this waits for its turn.

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
        what goes wrong in a further one is told in ``refused``.
    """
    workload, settings = job.workload, job.workload.benchmark
    profile = profile_named(profile) if isinstance(profile, str) else profile
    subjects = [candidate.subject(workspace) for candidate in candidates]
    engines = tuple(sorted({workload.recipe_named(each.candidate.recipe).engine for each in candidates}))
    with host_lock(LOCK, on_wait=lambda: workspace.progress(0, profile.launches, "waiting for another benchmark")):
        limit = Limit(limit_s)
        session = _Session(job, profile, attempt, workspace, limit)
        began = time.perf_counter()
        before = observe("before", settings.threads, engines)
        measured = session.primary(subjects)
        memory = measure_memory(subjects, measured, settings.threads, limit=limit)
        timed_s, further = session.throughput([one for one in subjects if one.name in measured.names()])
        after = _with_launches(observe("after", settings.threads, engines), measured.launches)
        wall_s = time.perf_counter() - began
    aa = aa_ratio(measured, settings.baseline)
    primary = timings_of(measured, settings.baseline, settings.threads, settings.batch_size, memory, "primary")
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
        timings=(*primary, *further),
        refused=measured.refused | session.refused,
        evidence_before=before.model_dump_json(),
        evidence_after=after.model_dump_json(),
        wall_s=wall_s,
        timed_s=measured.timed_s + timed_s,
    )


def benchmark_with_rerun(
    job: Job[Workload],
    candidates: Sequence[BenchmarkCandidate],
    profile: Profile | str,
    workspace: Workspace,
    *,
    limit_s: float | None = None,
) -> list[BenchmarkResult]:
    """Benchmark, and once more where the verdict was inconclusive and the profile repeats; both results are kept.

    `limit_s` holds for each of the two.
    """
    profile = profile_named(profile) if isinstance(profile, str) else profile
    again = partial(benchmark, job, candidates, profile, workspace, limit_s=limit_s)
    first = again(attempt=1)
    if first.verdict == "valid" or not profile.repeats:
        return [first]
    return [first, again(attempt=2)]


@dataclass
class _Session:
    """What all measurements of one benchmark have in common.

    ``refused`` gathers what a further setting refused, or why nothing was timed in it: ``recipe/runtime (setting)`` and
    ``every candidate (setting)``.
    """

    job: Job[Workload]
    profile: Profile
    attempt: int
    workspace: Workspace
    limit: Limit
    refused: dict[str, str] = field(default_factory=dict)

    def primary(self, subjects: Sequence[Subject]) -> Measured:
        """The setting that candidates are compared in, with the A/A check."""
        return self._measure(subjects, self.job.workload.benchmark.threads, with_copy=True)

    def throughput(self, subjects: Sequence[Subject]) -> tuple[float, list[Timing]]:
        """Seconds in timed blocks, and the rows, of every further batch size and thread count."""
        settings = self.job.workload.benchmark
        timed_s, rows = 0.0, []
        for setting in further_settings(settings):
            try:
                with subjects_at(setting.batch_size, subjects, self.job, self.workspace.store) as there:
                    measured = self._measure(there, setting.threads, with_copy=False)
            except (MeasurementError, InputError) as error:
                # What was timed so far is right without it, and the primary setting is what decides.
                self.refused[f"every candidate ({setting})"] = str(error)
                continue
            timed_s += measured.timed_s
            self.refused |= {f"{name} ({setting})": reason for name, reason in measured.refused.items()}
            rows += timings_of(measured, settings.baseline, setting.threads, setting.batch_size, {}, "throughput")
        return timed_s, rows

    def _measure(self, subjects: Sequence[Subject], threads: int, *, with_copy: bool) -> Measured:
        return measure(
            subjects,
            self.job.workload.benchmark.baseline,
            self.profile,
            threads,
            with_copy=with_copy,
            attempt=self.attempt,
            limit=self.limit,
            on_launch=lambda done: self.workspace.progress(done, self.profile.launches, "launches"),
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
