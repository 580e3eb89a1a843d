"""The benchmark stage: time a workload's candidates while no other benchmark runs on this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from storage.artifacts import ArtifactStore
from storage.errors import StoreError
from storage.humanize import plural
from storage.locks import host_lock
from storage.results import Setting
from tasks.data.tensor_files import GOLDEN
from tasks.environment.machine import fingerprint, host_conditions, memory_conditions, observe
from tasks.environment.sources import code_digest
from tasks.measure.benchmark.capacity import eligible_subjects, measure_capacity
from tasks.measure.benchmark.child import Limit
from tasks.measure.benchmark.contest import Contest
from tasks.measure.benchmark.diagnostics import Diagnosis, diagnose, timings_of
from tasks.measure.benchmark.messages import Memory, Profile, Subject
from tasks.measure.benchmark.protocol import LOCK, Session
from tasks.measure.benchmark.statistics import verdict_of
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.values.job import Fact, Job, Workspace
from tasks.values.proofs import Proof
from tasks.values.refs import ArtifactRef, CandidateRef, Frozen
from tasks.values.results import BenchmarkResult
from tasks.workload.recipe import CandidateName
from tasks.workload.rules import can_fail_after_timing
from tasks.workload.workload import Workload

T = TypeVar("T", bound=Frozen)
# The code that measures memory, and the code that loads candidates, which it names as a string.
_MEASURES_MEMORY = ("tasks.measure.benchmark.diagnostics", "tasks.measure.benchmark.launch")


class BenchmarkCandidate(Frozen):
    """A candidate to time, and the golden outputs that the candidate must reproduce.

    ``speed_decides`` says whether the candidate's speed affects decisions. ``is_current`` marks a candidate that is
    identical to the current bundle, and ``setting`` tells the bundle's own files. ``twin`` is the float candidate of
    a quantized candidate's runtime. ``could_serve`` marks a float candidate that could be deployed instead.
    """

    candidate: CandidateRef
    outputs: ArtifactRef
    setting: Setting = "primary"
    speed_decides: bool = True
    is_current: bool = False
    may_be_promoted: bool = True
    twin: CandidateName | None = None
    could_serve: bool = False

    @property
    def key(self) -> str:
        """Key of the candidate's subject in reports."""
        return self.candidate.name.key(self.setting)

    def subject(self, workspace: Workspace) -> Subject:
        """Return the locations from which child processes load the candidate."""
        files = CandidateFiles.find(self.candidate, workspace.store)
        return Subject(
            name=self.candidate.name,
            setting=self.setting,
            folder=str(files.folder),
            shared={kind: str(folder) for kind, folder in files.shared.items()},
            golden=str(workspace.store.path(self.outputs.kind, self.outputs.digest) / GOLDEN),
        )


@contextmanager
def alone_on_host(
    workload: Workload, baseline: CandidateName, profile: Profile, workspace: Workspace, limit_s: float | None = None
) -> Iterator[Session]:
    """Yield a session while no other benchmark runs on this host; `limit_s` excludes the wait."""
    with host_lock(LOCK, on_wait=lambda: workspace.progress(0, profile.launches, "waiting for another benchmark")):
        yield Session(
            baseline,
            profile,
            workload.benchmark.threads,
            limit=Limit(limit_s),
            on_launch=lambda done, minimum: workspace.progress(done, minimum, "launches"),
        )


def benchmark(
    workspace: Workspace,
    job: Job[Workload],
    candidates: Sequence[BenchmarkCandidate],
    profile: Profile,
    limit_s: float | None = None,
) -> BenchmarkResult:
    """Time all candidates of a workload against its baseline, while no other benchmark runs on the host.

    `limit_s` limits the duration in seconds, excluding the wait for other benchmarks. In the result, ``unknown``
    reports failures of memory measurements or proofs.
    """
    workload, settings = job.workload, job.workload.benchmark
    subjects = [candidate.subject(workspace) for candidate in candidates]
    contest = contest_of(workload, candidates)
    with alone_on_host(workload, workload.baseline_name, profile, workspace, limit_s) as session:
        before = observe(settings.threads)
        measured = session.measure(subjects, contest)
        timed = [subject for subject in subjects if subject.key in measured.names()]
        memories, proofs = memory_facts(workload, candidates), proof_facts(workload, candidates)
        known = Diagnosis(_found(memories, timed, workspace.store), _found(proofs, timed, workspace.store))
        diagnosis = diagnose(session, timed, measured.launches[0].modules, known)
        after = observe(settings.threads)
        # Measure capacity last, so that its load does not affect the recorded state of the host.
        if settings.capacity is not None:
            workspace.progress(0, 1, "capacity measurements")
        promising = [each.key for each in candidates if each.may_be_promoted or each.is_current]
        served, unserved = measure_capacity(session, timed, eligible_subjects(measured, promising), workload)
    # A later run may be able to sample missing instructions.
    complete = {name: proof for name, proof in diagnosis.proofs.items() if proof.instructions is not None}
    _keep(memories, diagnosis.memory, known.memory, workspace.store)
    _keep(proofs, complete, known.proofs, workspace.store)
    aa, cold_aa = measured.aa_ratio(), measured.with_caches("cold").aa_ratio()
    return BenchmarkResult(
        verdict=verdict_of(aa),
        aa_ratio=aa.value,
        aa_low=aa.low,
        aa_high=aa.high,
        cold_aa_ratio=cold_aa.value,
        cold_aa_low=cold_aa.low,
        cold_aa_high=cold_aa.high,
        fingerprint=fingerprint(),
        timings=tuple(timings_of(measured, settings.batch_size, diagnosis.memory)),
        refused=measured.refused,
        proofs=diagnosis.proofs,
        capacities=served,
        unknown={
            name: diagnosis.unknown.get(name, {}) | unserved.get(name, {}) for name in diagnosis.unknown | unserved
        },
        evidence_before=before.model_dump_json(),
        evidence_after=after.model_dump_json(),
    )


def contest_of(workload: Workload, candidates: Sequence[BenchmarkCandidate]) -> Contest:
    """Return the candidates in a workload's benchmark whose speed affects decisions."""
    baseline, gate = str(workload.baseline_name), workload.gate
    contending = [each for each in candidates if each.speed_decides and each.setting == "primary"]
    contending = [each for each in contending if each.key != baseline]
    # The others may leave early only if the fastest contender that passes is sure to win.
    is_sure = all(each.may_be_promoted for each in contending) and not can_fail_after_timing(gate)
    deployed = (each.key for each in candidates if each.is_current or each.setting == "current")
    return Contest(
        contenders=frozenset(each.key for each in contending),
        min_speedup=gate.min_speedup,
        current=next(deployed, ""),
        caches=workload.benchmark.caches,
        fastest_wins=gate.objective == "fastest" and is_sure,
        twins={candidate.key: str(candidate.twin) for candidate in candidates if candidate.twin},
        floats=frozenset(candidate.key for candidate in candidates if candidate.could_serve),
        min_over_best_float=gate.over_best_float,
    )


def fastest_float(
    workspace: Workspace, job: Job[Workload], candidates: Sequence[BenchmarkCandidate], profile: Profile
) -> tuple[CandidateName, str]:
    """Time the float candidates that could be the baseline; return the fastest, and the reason for the choice."""
    workload = job.workload
    contest = Contest(caches=workload.benchmark.caches, floats=frozenset(candidate.key for candidate in candidates))
    # One launch is enough, because nothing but the order of the floats is asked. If two floats are about as fast, the
    # choice is arbitrary; by default, a quantized candidate must beat each of them (`Gate.over_best_float`), and a
    # later night changes the baseline if another float is clearly faster.
    least = {"launches": 1, "single_calls": 0} | ({"cold_rounds": 2} if contest.caches == "warm" else {})
    brief = profile.model_copy(update=least)
    with alone_on_host(workload, candidates[0].candidate.name, brief, workspace) as session:
        subjects = [candidate.subject(workspace) for candidate in candidates]
        measured = session.measure(subjects, contest, with_copy=False)
    measured = measured.with_caches(contest.caches)
    best = measured.best_float()
    over = [ratio for name in measured.floats() if name != best and (ratio := measured.over_best_float(name))]
    nearest = max((ratio.value for ratio in over), default=None)
    reason = f"it was the fastest of {plural(len(candidates), 'float candidate')}"
    return CandidateName.parse(best), reason + (f", {1 / nearest:.3g} times as fast as the next" if nearest else "")


def memory_facts(workload: Workload, candidates: Sequence[BenchmarkCandidate]) -> dict[str, Fact[Memory]]:
    """Return a `Fact` for each candidate's memory, which differs little between runs under equal conditions."""
    host = host_conditions() | memory_conditions()
    return {
        each.key: Fact("memory", Memory, each.candidate, _conditions(workload, each, host, *_MEASURES_MEMORY))
        for each in candidates
    }


def proof_facts(workload: Workload, candidates: Sequence[BenchmarkCandidate]) -> dict[str, Fact[Proof]]:
    """Return a `Fact` for each candidate's proof; empty if the gate decides by their time shares."""
    if workload.gate.min_int8_time_share is not None:
        return {}
    host = host_conditions("capstone")
    return {
        each.key: Fact("proof", Proof, each.candidate, _conditions(workload, each, host, "tasks.measure.proof.child"))
        for each in candidates
    }


def _conditions(
    workload: Workload, candidate: BenchmarkCandidate, host: Mapping[str, object], *modules: str
) -> dict[str, object]:
    return {
        "code": code_digest(*modules, runtime_named(candidate.candidate.runtime).module("open")),
        "host": host,
        "golden": candidate.outputs.digest,  # contains the inputs
        "threads": workload.benchmark.threads,
    }


def _found(facts: Mapping[str, Fact[T]], subjects: Sequence[Subject], store: ArtifactStore) -> dict[str, T]:
    found = {each.key: facts[each.key].find(store) for each in subjects if each.key in facts}
    return {name: value for name, value in found.items() if value is not None}


def _keep(facts: Mapping[str, Fact[T]], values: Mapping[str, T], known: Mapping[str, T], store: ArtifactStore) -> None:
    for name in facts.keys() & (values.keys() - known.keys()):
        with suppress(StoreError):  # the next run can repeat the work, but cannot recover lost timings
            facts[name].keep(values[name], store)
