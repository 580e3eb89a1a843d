"""The protocol: launches one after the other, the same subjects in each, and what they found taken together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from storage.errors import MeasurementError
from tasks.benchmark.child import Limit, run_child
from tasks.benchmark.messages import (
    COPY_SUFFIX,
    ChildSpec,
    LaunchReport,
    LaunchSpec,
    MemoryReport,
    Profile,
    Subject,
    SubjectReport,
)
from tasks.benchmark.statistics import Array, Ratio, speed_ratio

LOCK = "benchmark"  # of the host: one benchmark at a time
_SEED = 29592


@dataclass(frozen=True)
class Measured:
    """All launches of one setting; subjects that were refused in any of them are in none of them."""

    baseline: str
    threads: int
    launches: tuple[LaunchReport, ...]
    refused: dict[str, str]

    def names(self) -> list[str]:
        """The subjects that were timed, the baseline's copy among them."""
        return [name for name in self.launches[0].subjects if name not in self.refused]

    def of(self, name: str) -> list[SubjectReport]:
        """One subject's report from every launch."""
        return [launch.subjects[name] for launch in self.launches]

    def block_s(self, name: str) -> Array:
        """Seconds per call in every block, float64 [launches, rounds]."""
        return np.array([report.round_s for report in self.of(name)])

    def single_s(self, name: str) -> Array:
        """Seconds of every single call, float64 [calls]."""
        return np.concatenate([np.array(report.single_s, dtype=np.float64) for report in self.of(name)])

    def ratio(self, name: str) -> Ratio:
        """How much faster than the baseline a subject is."""
        return speed_ratio(self.block_s(name), self.block_s(self.baseline))

    def aa_ratio(self) -> Ratio:
        """The baseline against the copy of itself."""
        return self.ratio(self.baseline + COPY_SUFFIX)

    @property
    def timed_s(self) -> float:
        """Seconds inside timed blocks and calls."""
        return sum(launch.timed_s for launch in self.launches)


@dataclass(frozen=True)
class Session:
    """What the measurements of one benchmark have in common.

    ``attempt`` decides the order of the blocks; ``on_launch`` is called with the number of launches that are through.
    """

    baseline: str
    profile: Profile
    threads: int = 1
    loader: str = "tasks.benchmark.launch:load_candidate"
    attempt: int = 1
    limit: Limit = field(default_factory=Limit)
    on_launch: Callable[[int], None] = lambda done: None

    def measure(self, subjects: Sequence[Subject], *, with_copy: bool = True) -> Measured:
        """Time the subjects against each other and, `with_copy`, the baseline against a copy of itself.

        Raises
        ------
        MeasurementError
            A launch died or went beyond the limit, or the baseline is missing or was refused.
        """
        copy = self.baseline + COPY_SUFFIX
        copies = [each.model_copy(update={"name": copy}) for each in subjects if each.name == self.baseline]
        if not copies:
            raise MeasurementError(
                f"The baseline {self.baseline} is not among the candidates.",
                hint="It failed in an earlier stage, or was not asked for.",
            )
        remaining = [*subjects, *copies] if with_copy else list(subjects)
        refused: dict[str, str] = {}
        calls: dict[str, int] = {}
        launches: list[LaunchReport] = []
        for number in range(self.profile.launches):
            spec = LaunchSpec(
                subjects=tuple(remaining),
                loader=self.loader,
                profile=self.profile,
                threads=self.threads,
                seed=_SEED + 1000 * self.attempt + number,
                # Frozen by the first launch: every block of a subject then holds the same number of calls.
                calls=calls,
                modules=launches[0].modules if launches else (),
                spawned_at=time.monotonic(),
            )
            report = run_child("tasks.benchmark.launch", spec, LaunchReport, self.limit)
            refused |= {name: f"launch {number + 1}: {reason}" for name, reason in report.refused.items()}
            for name in (self.baseline, copy):
                if name in refused:
                    raise MeasurementError(f"The baseline {self.baseline} cannot be timed: {refused[name]}.")
            remaining = [subject for subject in remaining if subject.name not in refused]
            calls = calls or {name: timed.calls_per_block for name, timed in report.subjects.items()}
            launches.append(report)
            self.on_launch(number + 1)
        return Measured(self.baseline, self.threads, tuple(launches), refused)

    def measure_memory(self, subjects: Sequence[Subject], modules: tuple[str, ...]) -> MemoryReport:
        """Resident memory of every subject, each in a process of its own that has imported `modules` before.

        Raises
        ------
        MeasurementError
            The memory process died or went beyond the limit.
        """
        spec = ChildSpec(subjects=tuple(subjects), loader=self.loader, threads=self.threads, modules=modules)
        return run_child("tasks.benchmark.memory", spec, MemoryReport, self.limit)
