"""The protocol: launches one after the other, the same subjects in each, and what they found taken together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import MeasurementError
from tasks.benchmark.children import Limit, run_child
from tasks.benchmark.messages import (
    COPY_SUFFIX,
    LaunchReport,
    LaunchSpec,
    Memory,
    MemoryReport,
    MemorySpec,
    Subject,
    SubjectReport,
)
from tasks.benchmark.profile import Profile
from tasks.benchmark.statistics import Array

CANDIDATES = "tasks.benchmark.loading:load_candidate"
NO_LIMIT = Limit()
_SEED = 29592


@dataclass(frozen=True)
class Measured:
    """All launches of one setting; subjects that were refused in any of them are in none of them."""

    launches: tuple[LaunchReport, ...]
    refused: dict[str, str]

    def names(self) -> list[str]:
        """The subjects that were timed, the baseline's copy among them."""
        return [report.name for report in self.launches[0].subjects if report.name not in self.refused]

    def of(self, name: str) -> list[SubjectReport]:
        """One subject's report from every launch."""
        return [next(one for one in launch.subjects if one.name == name) for launch in self.launches]

    def block_s(self, name: str) -> Array:
        """Seconds per call in every block, float64 [launches, rounds]."""
        return np.array([report.round_s for report in self.of(name)])

    def single_s(self, name: str) -> Array:
        """Seconds of every single call, float64 [calls]."""
        return np.concatenate([np.array(report.single_s, dtype=np.float64) for report in self.of(name)])

    @property
    def timed_s(self) -> float:
        """Seconds inside timed blocks and calls."""
        return sum(launch.timed_s for launch in self.launches)


def measure(
    subjects: Sequence[Subject],
    baseline: str,
    profile: Profile,
    threads: int,
    *,
    loader: str = CANDIDATES,
    with_copy: bool = True,
    attempt: int = 1,
    limit: Limit = NO_LIMIT,
    on_launch: Callable[[int], None] = lambda done: None,
) -> Measured:
    """Time the subjects against each other, and the baseline against a copy of itself.

    Raises
    ------
    MeasurementError
        A launch died or went beyond `limit`, or the baseline itself was refused.
    """
    remaining = list(subjects)
    if with_copy:
        remaining.append(_named(subjects, baseline).copy_for_check())
    refused: dict[str, str] = {}
    calls: dict[str, int] = {}
    launches: list[LaunchReport] = []
    for launch in range(profile.launches):
        spec = _spec(remaining, profile, threads, loader, launch, attempt)
        if launches:
            # Frozen by the first launch: every block of a subject then holds the same number of calls.
            spec = spec.model_copy(update={"calls": calls, "modules": launches[0].modules})
        report = run_child("tasks.benchmark.launch", spec, LaunchReport, threads, limit)
        refused |= {name: f"launch {launch + 1}: {reason}" for name, reason in report.refused.items()}
        for name in (baseline, baseline + COPY_SUFFIX):
            if name in refused:
                raise MeasurementError(f"The baseline {baseline} cannot be timed: {refused[name]}.")
        remaining = [subject for subject in remaining if subject.name not in refused]
        calls = calls or {one.name: one.calls_per_block for one in report.subjects}
        launches.append(report)
        on_launch(launch + 1)
    return Measured(tuple(launches), refused)


def measure_memory(
    subjects: Sequence[Subject],
    measured: Measured,
    threads: int,
    *,
    loader: str = CANDIDATES,
    limit: Limit = NO_LIMIT,
) -> dict[str, Memory]:
    """Resident memory of every subject that was timed, each in a process of its own.

    Raises
    ------
    MeasurementError
        The memory process died or went beyond `limit`.
    """
    timed = set(measured.names())
    spec = MemorySpec(
        subjects=tuple(subject for subject in subjects if subject.name in timed),
        loader=loader,
        threads=threads,
        modules=measured.launches[0].modules,
    )
    return run_child("tasks.benchmark.memory", spec, MemoryReport, threads, limit).memory


def _named(subjects: Sequence[Subject], name: str) -> Subject:
    for subject in subjects:
        if subject.name == name:
            return subject
    raise MeasurementError(
        f"The baseline {name} is not among the candidates.", hint="It failed in an earlier stage, or was not asked for."
    )


def _spec(
    subjects: Sequence[Subject],
    profile: Profile,
    threads: int,
    loader: str,
    launch: int,
    attempt: int,
) -> LaunchSpec:
    return LaunchSpec(
        subjects=tuple(subjects),
        loader=loader,
        threads=threads,
        launch=launch,
        rounds=profile.rounds,
        block_s=profile.block_s,
        warm_up_calls=profile.warm_up_calls,
        warm_up_s=profile.warm_up_s,
        single_calls=-(-profile.single_calls // profile.launches),
        single_s=profile.single_s,
        seed=_SEED + 1000 * attempt + launch,
        spawned_at=time.monotonic(),
    )
