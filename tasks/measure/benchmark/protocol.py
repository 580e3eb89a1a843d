"""Benchmark protocol: launch the same subjects repeatedly until every speed rule is decided or time runs out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from storage.errors import MeasurementError
from storage.results import Caches
from tasks.environment.machine import available_cores, available_memory
from tasks.measure.benchmark.child import Child, Limit, Report, run_child
from tasks.measure.benchmark.contest import Contest, Measured
from tasks.measure.benchmark.messages import ChildSpec, LaunchOrder, LaunchReport, LaunchSpec, Profile, Subject
from tasks.measure.benchmark.statistics import CHECKED_AT
from tasks.workload.recipe import CandidateName

LOCK = "benchmark"  # name of the host lock that allows one benchmark at a time
_SEED = 29592
# Number of launches that time subjects whose speed does not affect decisions.
_FEWEST = 2
# Cold calls take this fraction of the time of a launch's earlier steps, which is less if they do not decide.
_COLD_SHARE: dict[Caches, float] = {"warm": 1 / 24, "cold": 1 / 3}
# Memory of a launch: libraries, and how much a byte of a candidate's files can take. Float weights are also packed.
_PROCESS_BYTES, _BYTES_PER_BYTE = 1 << 30, 6


@dataclass(frozen=True)
class Waiting:
    """Launches that have loaded and wait for their turn."""

    children: list[Child[LaunchReport]] = field(default_factory=list)

    def close(self) -> None:
        """Stop launches that are not needed."""
        for child in self.children:
            child.close()


@dataclass(frozen=True)
class Session:
    """Settings of a benchmark; ``on_launch`` receives the numbers of finished and required launches."""

    baseline: CandidateName
    profile: Profile
    threads: int = 1
    loader: str = "tasks.measure.benchmark.launch:load_candidate"
    limit: Limit = field(default_factory=Limit)
    on_launch: Callable[[int, int], None] = lambda done, minimum: None

    def measure(
        self, subjects: Sequence[Subject], contest: Contest | None = None, *, with_copy: bool = True
    ) -> Measured:
        """Time the subjects and, if `with_copy` is true, a copy of the baseline.

        Without a `contest`, every launch times every subject. With a contest, only the first two launches time subjects
        that do not affect decisions. A contender leaves when it is known to be too slow or unable to win, and launches
        continue until the contest is decided or the profile's time runs out.
        """
        baseline, copy = str(self.baseline), self.baseline.key("a/a")
        copies = [subject.model_copy(update={"setting": "a/a"}) for subject in subjects if subject.key == baseline]
        if not copies:
            raise MeasurementError(
                f"The baseline {self.baseline} is not among the candidates.",
                hint="Check that the run includes the baseline and that the baseline's earlier stages succeeded.",
            )
        remaining = timed = [*subjects, *copies] if with_copy else list(subjects)
        minimum = self.profile.launches
        if contest is not None and not contest.contenders:
            minimum = min(minimum, _FEWEST)
        contest, began = contest or Contest(frozenset(subject.key for subject in subjects)), time.monotonic()
        refused: dict[str, str] = {}
        launches: list[LaunchReport] = []
        with closing(Waiting()) as waiting:
            while True:
                certain = next(look for look in (minimum, *CHECKED_AT) if look > len(launches)) - len(launches)
                launches.append(report := self._launch(remaining, launches, contest.caches, waiting, certain))
                done = len(launches)
                refused |= {name: f"launch {done}: {reason}" for name, reason in report.refused.items()}
                for name in (baseline, copy):
                    if name in refused:
                        raise MeasurementError(
                            f"The baseline {self.baseline} cannot be timed ({refused[name]}).",
                            hint="Check that the baseline runs correctly on this host.",
                        )
                timed = [subject for subject in timed if subject.key not in refused]
                measured = Measured(baseline, copy, tuple(timed), self.threads, tuple(launches), refused, contest)
                remaining = [subject for subject in remaining if subject in timed]
                if done == _FEWEST or done in CHECKED_AT:
                    needed = {baseline, copy, *contest.needed(measured)}
                    remaining = [subject for subject in remaining if subject.key in needed]
                self.on_launch(done, max(done, minimum))
                is_late = (time.monotonic() - began) * (done + 1) / done > self.profile.budget_s or done == CHECKED_AT[
                    -1
                ]
                if done >= minimum and (is_late or (done in (*CHECKED_AT, minimum) and contest.is_decided(measured))):
                    return measured

    def examine(
        self, module: str, report: type[Report], subjects: Sequence[Subject], modules: tuple[str, ...], processes: int
    ) -> Report:
        """Return the report of a child process about the subjects' memory or proofs."""
        spec = ChildSpec(
            subjects=tuple(subjects), loader=self.loader, threads=self.threads, modules=modules, processes=processes
        )
        return run_child(module, spec, report, self.limit)

    def _launch(
        self,
        subjects: Sequence[Subject],
        earlier: Sequence[LaunchReport],
        caches: Caches,
        waiting: Waiting,
        certain: int,
    ) -> LaunchReport:
        # Later launches reuse the first launch's call counts, so that a subject's blocks have the same number of calls.
        first = earlier[0].subjects if earlier else {}
        order = LaunchOrder(
            keys=tuple(subject.key for subject in subjects),
            calls={name: timed.calls_per_block for name, timed in first.items()},
            cold_rounds=len(first[str(self.baseline)].cold_s) if first else None,
            single_calls=-(-self.profile.single_calls // _FEWEST) if len(earlier) < _FEWEST else 0,
        )
        if not waiting.children:
            spec = LaunchSpec(
                subjects=tuple(subjects),
                loader=self.loader,
                profile=self.profile,
                threads=self.threads,
                seed=_SEED + len(earlier),
                cold_share=_COLD_SHARE[caches],
                modules=earlier[0].modules if earlier else (),
                spawned_at=time.monotonic(),
            )
            beside = spec.model_copy(update={"seed": spec.seed + 1, "loads_beside": True})
            for each in (spec, beside) if certain > 1 and self._two_fit(subjects) else (spec,):
                child = Child("tasks.measure.benchmark.launch", each, LaunchReport, self.limit)
                waiting.children.append(child)
            for child in waiting.children:  # nothing may load beside a timed block
                child.wait_until_ready()
        with closing(waiting.children.pop(0)) as child:
            return child.finish(order.model_dump_json())

    def _two_fit(self, subjects: Sequence[Subject]) -> bool:
        """Return whether two launches can load at the same time."""
        needed = _PROCESS_BYTES + _BYTES_PER_BYTE * sum(subject.size_bytes() for subject in subjects)
        return available_cores() >= 2 * self.threads and 2 * needed <= available_memory()
