"""The contest of a benchmark's candidates: ratios from all launches, and the candidates that are not yet decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from storage.results import Caches
from tasks.measure.benchmark.messages import LaunchReport, Subject, SubjectReport
from tasks.measure.benchmark.statistics import CHECKED_AT, Array, Noise, Ratio, Sample, step_down

# After two launches, a float candidate this many times as slow as the fastest cannot be the best float any more.
_OUT_OF_REACH = 1.2


@dataclass(frozen=True)
class Contest:
    """Keys of subjects whose speed affects decisions: ``contenders`` for promotion, and the deployed ``current``.

    With ``fastest_wins``, a contender can stay undecided if a faster contender is fast enough. ``twins`` maps each
    quantized subject to the float subject of the same runtime. A contender with a twin must be ``min_over_best_float``
    times as fast as each of ``floats``, which could be deployed instead.
    """

    contenders: frozenset[str] = frozenset()
    min_speedup: float | None = None
    current: str = ""
    caches: Caches = "warm"
    fastest_wins: bool = False
    twins: Mapping[str, str] = field(default_factory=dict)
    floats: frozenset[str] = frozenset()
    min_over_best_float: float | None = None

    @property
    def comparisons(self) -> int:
        """Number of speed ratios that affect decisions."""
        quantized = len(self.contenders & self.twins.keys()) if self.min_over_best_float is not None else 0
        return len(self.contenders) * ((self.min_speedup is not None) + bool(self.current)) + quantized

    def needed(self, measured: Measured) -> set[str]:
        """Return the subjects that later launches time, in addition to the baseline and its copy."""
        undecided = self.contenders - (self._standings(measured)[1] if len(measured.launches) in CHECKED_AT else set())
        deciding = {*undecided, *([self.current] if self.current else [])}
        judged = measured.with_caches(self.caches)
        speeds = {name: judged.ratio(name).value for name in judged.floats()}
        close = {name for name, speed in speeds.items() if speed * _OUT_OF_REACH >= max(speeds.values())}
        # The floats stay even if every contender has left, because `Measured.floats` are those of every launch. Without
        # contenders, nothing depends on the speed of the floats.
        stay = close if self.contenders or self.current else set()
        return deciding | {self.twins[name] for name in deciding & self.twins.keys()} | stay

    def is_decided(self, measured: Measured) -> bool:
        """Return whether every contender is known to be fast enough, too slow, or unable to win."""
        # Contenders that left were decided; a later, larger estimate of the noise does not make them contenders again.
        return set().union(*self._standings(measured)) >= self.contenders & measured.launches[-1].subjects.keys()

    def _standings(self, measured: Measured) -> tuple[set[str], set[str]]:
        """Return the contenders that are fast enough, and those that are too slow or unable to win."""
        measured = measured.with_caches(self.caches)
        names = [name for name in self.contenders if name not in measured.refused]
        least = self.min_speedup if self.min_speedup is not None else 0.0
        bounds = {name: measured.bounds(name) for name in names} if self.min_speedup is not None else {}
        over = {name: ratio for name in names if (ratio := measured.over_best_float_bounds(name))}
        rule = self.min_over_best_float if self.min_over_best_float is not None else 0.0
        too_slow = {name for name in bounds if bounds[name].high < least}
        too_slow |= {name for name in over if over[name].high < rule}
        passing = {
            name
            for name in names
            if (name not in bounds or bounds[name].low >= least) and (name not in over or over[name].low >= rule)
        }
        if self.fastest_wins and (able := passing & bounds.keys() & measured.launches[-1].subjects.keys()):
            fastest = max(sorted(able), key=lambda name: bounds[name].low)
            # A comparison with the fastest itself is narrower than two comparisons with the baseline.
            too_slow |= {name for name in bounds.keys() - {fastest} if measured.over(name, fastest).high < 1}
        return passing, too_slow


@dataclass(frozen=True)
class Measured:
    """Results of all launches of a benchmark, by the subjects' keys; ``caches`` selects warm or cold calls."""

    baseline: str
    copy: str
    subjects: tuple[Subject, ...]
    threads: int
    launches: tuple[LaunchReport, ...]
    refused: dict[str, str]
    contest: Contest
    caches: Caches = "warm"

    def with_caches(self, caches: Caches) -> Measured:
        """Return a copy of the results that uses warm or cold calls."""
        return replace(self, caches=caches)

    def names(self) -> list[str]:
        """Return the keys of the timed subjects, including the baseline's copy."""
        return [subject.key for subject in self.subjects]

    def of(self, name: str) -> list[SubjectReport]:
        """Return a subject's reports from all launches."""
        return [launch.subjects[name] for launch in self.launches if name in launch.subjects]

    def round_s(self, name: str) -> Array:
        """Return the seconds per call in each round of blocks or of cold calls, as float64 [launches, rounds]."""
        return np.array([report.round_s if self.caches == "warm" else report.cold_s for report in self.of(name)])

    def single_s(self, name: str) -> Array:
        """Return the durations of the individually timed calls in seconds, as float64 [calls]."""
        return np.concatenate([np.array(report.single_s, dtype=np.float64) for report in self.of(name)])

    def ratio(self, name: str) -> Ratio:
        """Return a subject's speed-up over the baseline, with the 95% interval."""
        return Ratio(1.0, 1.0, 1.0) if name == self.baseline else self._noise.interval(self._sample(name))

    def bounds(self, name: str) -> Ratio:
        """Return a subject's speed-up over the baseline, with the bounds that the gate uses (`Noise.bounds`)."""
        return self._bounds(name, self._undecided)

    def moderated(self, name: str) -> Ratio:
        """Return a subject's speed-up with a 95% interval that suits few launches; see `Noise.half_width`."""
        sample = self._sample(name)
        return Ratio.around(sample.mean, self._noise.half_width(sample, 0.025))

    def over_current(self, name: str) -> Ratio | None:
        """Return a contender's speed-up over the deployed subject, with the gate's bounds, or None if it is unknown."""
        current = self.contest.current
        if name not in self.contest.contenders or current in (name, "") or current not in self.names():
            return None
        return self.over(name, current)

    def over(self, name: str, other: str) -> Ratio:
        """Return a subject's speed-up over a subject that was timed in as many launches, with the gate's bounds."""
        subject_s = self.round_s(name)  # a contender may have left before the last launch
        sample = Sample.against_one(subject_s, self.round_s(other)[: len(subject_s)])
        return self._noise.bounds(sample, self._sample(self.copy), self.contest.comparisons)

    def floats(self) -> list[str]:
        """Return the float subjects that could be deployed and were timed in every launch, in order."""
        complete = [name for name in self.names() if len(self.of(name)) == len(self.launches)]
        return [name for name in complete if name in self.contest.floats]

    def best_float(self) -> str:
        """Return the fastest subject of `floats`, or ``""`` if there is none."""
        return max(self.floats(), key=lambda name: self._reference(name).mean, default="")

    def gains(self, name: str) -> tuple[Ratio, Ratio] | None:
        """Return what a subject's runtime gains, and what its quantization gains; None if the twin was not timed."""
        twin = self.contest.twins.get(name, name)
        if twin not in self.names():
            return None
        if twin == name:
            return self.ratio(name), Ratio(1.0, 1.0, 1.0)
        subject, other = self._sample(name), self._reference(twin)
        if twin == self.baseline:
            return Ratio(1.0, 1.0, 1.0), self._noise.interval(subject)
        cut = replace(other, logs=other.logs[: len(subject.logs)])
        return self._noise.interval(cut), self._noise.interval(subject.over(other))

    def over_best_float(self, name: str) -> Ratio | None:
        """Return the best float's latency divided by a subject's, with a 95% interval that allows for the choice."""
        samples = self._over_floats(name)
        if not samples:
            return None
        if name == self.best_float():
            return Ratio(1.0, 1.0, 1.0)
        best = samples[self.best_float()].mean
        low, high = self._noise.interval_of_least(list(samples.values()))
        value = Ratio.around(best, 0.0).value
        return Ratio(value, min(low, value), max(high, value))

    def over_best_float_bounds(self, name: str) -> Ratio | None:
        """Return `over_best_float` of a quantized subject with the gate's bounds, or None if no rule needs them.

        A subject must beat every float, so only the upper bounds need a correction for the number of floats.
        """
        return self._over_best_float_bounds(name, self._undecided)

    def aa_ratio(self) -> Ratio:
        """Return the speed ratio between the baseline and its copy."""
        return self.ratio(self.copy)

    @cached_property
    def _undecided(self) -> int:
        """Number of comparisons that share the error of a check (`step_down`)."""
        speed, gain = self.contest.min_speedup, self.contest.min_over_best_float
        names = sorted(self.contest.contenders & {*self.names()})

        def decided(comparisons: int) -> int:
            rules = []
            if speed is not None:
                rules += [(self._bounds(name, comparisons), speed) for name in names]
            if gain is not None:
                over = (self._over_best_float_bounds(name, comparisons) for name in names)
                rules += [(bounds, gain) for bounds in over if bounds is not None]
            return sum(not bounds.low < bound <= bounds.high for bounds, bound in rules)

        return step_down(self.contest.comparisons, decided)

    def _bounds(self, name: str, comparisons: int) -> Ratio:
        return self._noise.bounds(self._sample(name), self._sample(self.copy), comparisons)

    def _over_best_float_bounds(self, name: str, comparisons: int) -> Ratio | None:
        samples = self._over_floats(name)
        if self.contest.min_over_best_float is None or name not in self.contest.twins or not samples:
            return None
        copy = self._sample(self.copy)
        lows = [self._noise.bounds(sample, copy, comparisons).low for sample in samples.values()]
        highs = [self._noise.bounds(sample, copy, comparisons * len(samples)).high for sample in samples.values()]
        return Ratio(Ratio.around(samples[self.best_float()].mean, 0.0).value, min(lows), min(highs))

    @cached_property
    def _noise(self) -> Noise:
        return Noise.pooled(self._sample(name) for name in self.names() if name != self.baseline)

    def _over_floats(self, name: str) -> dict[str, Sample]:
        # A float that left the launches before this subject was clearly slower than another float.
        subject = self._reference(name)
        return {other: subject.over(self._reference(other)) for other in self.floats()}

    def _reference(self, name: str) -> Sample:
        """Return a subject's sample against the baseline, which is all zeros for the baseline itself."""
        sample = self._sample(name)
        return replace(sample, logs=np.zeros_like(sample.logs)) if name == self.baseline else sample

    def _sample(self, name: str) -> Sample:
        subject_s = self.round_s(name)
        baseline_s = self.round_s(self.baseline)[: len(subject_s)]
        if name == self.copy or self.copy not in self.names():
            return Sample.against_one(subject_s, baseline_s)
        return Sample.against_two(subject_s, baseline_s, self.round_s(self.copy)[: len(subject_s)])
