"""Measure how many requests per second the host can serve; this process starts the workers and sends the requests.

`tasks.benchmark.child` runs this module. The process first finds, for each subject, the best split of the processors
among workers. The process then measures capacity in sittings; each sitting starts a new fleet of workers for every
subject. In each round of a sitting, all subjects are measured in turn. Idle fleets sleep.
"""

from __future__ import annotations

import gc
import importlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from storage.errors import MeasurementError
from tasks.benchmark.capacity_fleet import Fleet, running_fleet
from tasks.benchmark.capacity_messages import CapacityReport, CapacitySpec, Served, Split
from tasks.benchmark.capacity_server import Probe, generator_limit, highest_rate, offer
from tasks.benchmark.messages import Subject
from tasks.benchmark.rounds import balanced_rounds
from tasks.benchmark.statistics import Array
from tasks.machine import affinity

# Fraction of the remaining time to spend on finding the best splits.
_SEARCH_SHARE = 0.35
_SHORTEST_S, _LONGEST_S = 0.2, 2.0
_FEWEST_WINDOWS = 3  # measurement windows per split in the first pass of the search
_FEWEST_SITTINGS, _MOST_SITTINGS = 3, 20
_FEWEST_REQUESTS = 100
# First rate to try, as a fraction of the highest throughput.
_FIRST_GUESS = 0.8
# Minimum numbers of requests for the 99th and 99.9th percentiles: at least ten latencies must exceed each percentile.
_FOR_P99, _FOR_P999 = 1_000, 10_000


@dataclass(frozen=True)
class _Plan:
    """A plan for the available time: how many sittings, rounds per sitting, and windows per subject in each sitting."""

    sittings: int
    rounds: int
    windows: int


# In the server scenario, the search for the highest rate tries about seven rates.
_PLANS = {"offline": _Plan(sittings=7, rounds=6, windows=6), "server": _Plan(sittings=6, rounds=1, windows=8)}


class _Score(NamedTuple):
    """A split's score: whether calls meet the latency bound, and the numbers of rows and calls per second."""

    fits: bool
    rows_per_s: float
    calls_per_s: float


@dataclass
class _Subject:
    """A subject's results so far; ``rps`` contains the requests per second for each round of each sitting."""

    subject: Subject
    split: Split
    score: _Score
    rps: list[list[float]] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    def served(self, spec: CapacitySpec) -> Served:
        """Return the report."""
        served = Served(split=self.split, rps=tuple(map(tuple, self.rps)))
        if not self.probes:
            return served
        latency_s = np.concatenate([probe.latency_s for probe in self.probes])
        lag_s = np.concatenate([probe.lag_s for probe in self.probes])
        count = len(latency_s)
        return served.model_copy(
            update={
                "requests": count,
                "p50_s": float(np.quantile(latency_s, 0.5)),
                "p99_s": float(np.quantile(latency_s, 0.99)) if count >= _FOR_P99 else None,
                "p999_s": float(np.quantile(latency_s, 0.999)) if count >= _FOR_P999 else None,
                "limit": generator_limit(lag_s, float(np.mean([probe.busy for probe in self.probes])), spec.bound_s),
            }
        )


@dataclass
class _Measurement:
    """The state of a capacity measurement; ``started_s`` lists each fleet's start-up time in seconds.

    A sitting measures each subject in windows of ``window_s`` seconds or with probes of ``requests`` requests.
    """

    spec: CapacitySpec
    processors: tuple[int, ...] = field(default_factory=affinity)
    started_s: list[float] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    window_s: float = 0.0

    def left_s(self) -> float:
        """Return the number of seconds until the budget is spent."""
        return self.spec.spawned_at + self.spec.budget_s - time.monotonic()

    def run(self) -> CapacityReport:
        """Find the best splits, measure the subjects' capacity, and return the report."""
        found, baseline = self._search(), self.spec.subjects[0].name
        if baseline in found:
            found = self._affordable(found)
            self._measure_sittings(found)
        if baseline in self.refused:
            reason = f"the baseline's capacity is unknown: {self.refused[baseline]}"
            self.refused = dict.fromkeys(found, reason) | self.refused
        subjects = {name: item.served(self.spec) for name, item in found.items() if name not in self.refused}
        return CapacityReport(subjects=subjects, refused=self.refused)

    def _search(self) -> dict[str, _Subject]:
        """Find each subject's best split by successive halving.

        See Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS
        2016. The subjects take turns and try the splits in the same order, because trying a split for only one subject
        would bias the capacity ratio.
        """
        end, windows = time.monotonic() + _SEARCH_SHARE * self.left_s(), _FEWEST_WINDOWS
        scores: dict[str, dict[Split, _Score]] = {subject.name: {} for subject in self.spec.subjects}
        alive = {subject.name: list(self.spec.splits) for subject in self.spec.subjects}
        while True:
            for position in range(max(map(len, alive.values()))):
                if any(scores.values()) and time.monotonic() > end:
                    break
                for subject in self.spec.subjects:
                    for split in alive[subject.name][position : position + 1]:
                        self._try(subject, split, windows, scores[subject.name])
            for name, tried in scores.items():
                ranked = sorted((split for split in alive[name] if split in tried), key=tried.__getitem__, reverse=True)
                alive[name] = ranked[: -(-len(ranked) // 2)]
            windows *= 2
            if time.monotonic() > end or max(map(len, alive.values())) <= 1:
                break
        self.refused = {name: reason for name, reason in self.refused.items() if not scores[name]}
        return {
            subject.name: _Subject(subject, alive[subject.name][0], scores[subject.name][alive[subject.name][0]])
            for subject in self.spec.subjects
            if subject.name not in self.refused
        }

    def _try(self, subject: Subject, split: Split, windows: int, scores: dict[Split, _Score]) -> None:
        """Score a split by the best of several windows, because other programs can only make a window slower."""
        # If a split fails, other splits may work, because some candidates do not support every number of rows.
        with self._refusing(subject.name), self._fleet(subject, split) as fleet:
            for _ in range(windows):
                window = fleet.repeat(_SHORTEST_S / 2)
                fits = not self.spec.bound_s or window.call_s <= self.spec.bound_s
                score = _Score(fits, window.calls_per_s * split.batch_size, window.calls_per_s)
                scores[split] = max(score, scores.get(split, score))

    def _affordable(self, found: dict[str, _Subject]) -> dict[str, _Subject]:
        """Choose the window length, the number of requests, and the subjects that can be measured in the time left.

        Return the chosen subjects.
        """
        plan, start_s, left_s = _PLANS[self.spec.scenario], float(np.mean(self.started_s)), self.left_s()
        # Measure at least two subjects, because the baseline's capacity alone does not affect decisions.
        most = max(2, math.floor(left_s / _FEWEST_SITTINGS / (start_s + plan.windows * _SHORTEST_S)))
        for name in list(found)[most:]:
            self.refused[name] = f"budget_s = {self.spec.budget_s:g} is sufficient for {most} of {len(found)} models"
        kept = {name: item for name, item in found.items() if name not in self.refused}
        window_s = (left_s / len(kept) / plan.sittings - start_s) / plan.windows
        self.window_s = min(max(window_s, _SHORTEST_S), _LONGEST_S)
        # All subjects get the same number of requests, because more requests can build up a longer queue.
        self.requests = max(_FEWEST_REQUESTS, int(next(iter(kept.values())).score.calls_per_s * self.window_s))
        return kept

    def _measure_sittings(self, found: dict[str, _Subject]) -> None:
        rounds, baseline, sitting_s = _PLANS[self.spec.scenario].rounds, self.spec.subjects[0].name, 0.0
        order = balanced_rounds(list(found), _MOST_SITTINGS * rounds, self.spec.seed)
        for sitting in range(_MOST_SITTINGS):
            if baseline in self.refused or (sitting >= _FEWEST_SITTINGS and self.left_s() < sitting_s):
                return
            began = time.monotonic()
            with ExitStack() as stack:
                fleets = {}
                for name in [name for name in found if name not in self.refused]:
                    with self._refusing(name):
                        fleets[name] = stack.enter_context(self._fleet(found[name].subject, found[name].split))
                        found[name].rps.append([])
                for names in order[sitting * rounds : (sitting + 1) * rounds]:
                    for name in names:
                        if name not in self.refused:
                            with self._refusing(name):
                                self._measure(found[name], fleets[name], sitting)
            sitting_s = max(sitting_s, time.monotonic() - began)

    def _measure(self, item: _Subject, fleet: Fleet, sitting: int) -> None:
        window = fleet.repeat(self.window_s)
        if self.spec.scenario == "offline":
            item.rps[-1].append(window.calls_per_s * item.split.batch_size / self.spec.request_rows)
            return
        gaps = np.random.default_rng([self.spec.seed, sitting]).exponential(
            size=min(self.requests, fleet.most_requests)
        )
        guess = item.probes[-1].rate if item.probes else _FIRST_GUESS * window.calls_per_s
        probe = highest_rate(self._twice(fleet, gaps), self.spec.bound_s, guess, window.calls_per_s)
        if probe is None:
            raise MeasurementError(
                f"No request rate meets latency_bound_ms = {self.spec.bound_s * 1e3:g}: "
                f"a call takes {window.call_s * 1e3:.3g} ms while all workers are busy.",
                hint="Raise latency_bound_ms.",
            )
        item.rps[-1].append(probe.rate)
        item.probes.append(probe)

    def _twice(self, fleet: Fleet, gaps: Array) -> Callable[[float], Probe]:
        """Return a function that tests a request rate and repeats a failed test once.

        Other programs on the host can make a single test fail.
        """

        def attempt(rate: float) -> Probe:
            probe = offer(fleet, gaps, rate)
            return probe if probe.is_within(self.spec.bound_s) else offer(fleet, gaps, rate)

        return attempt

    @contextmanager
    def _fleet(self, subject: Subject, split: Split) -> Iterator[Fleet]:
        golden = self.spec.goldens.get(split.batch_size, subject.golden)
        resized, began = subject.model_copy(update={"golden": golden}), time.monotonic()
        with running_fleet(resized, split, self.spec.loader, self.processors) as fleet:
            self.started_s.append(time.monotonic() - began)
            yield fleet

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        try:
            yield
        except MeasurementError as error:
            self.refused[name] = str(error)


def run(spec_json: str) -> CapacityReport:
    """Execute a `CapacitySpec`; this process must not call torch, because its workers are forked."""
    spec = CapacitySpec.model_validate_json(spec_json)
    for module in (*spec.modules, spec.loader.partition(":")[0]):
        importlib.import_module(module)
    # Without `gc.freeze`, garbage collection in a worker would touch, and therefore copy, every object of this process.
    gc.freeze()
    return _Measurement(spec).run()
