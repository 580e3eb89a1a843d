"""From block times to ratios with intervals, and to bounds that decide; NumPy and SciPy only."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# An A/A interval wider than this to either side says that the machine does not resolve small differences.
WIDEST = 0.05

# After so many launches a decision may fall.
LOOKS = (3, 5, 7, 10, 14, 20, 28, 40, 56)
# The share of benchmarks in which any candidate may be decided on wrongly in one direction. Later looks get more of it
# (1 : 2 : 3 ...), because few launches seldom decide what is close.
ERROR = 0.01
# What may stick to one subject in every launch, so that no number of launches averages it away.
STICKS = math.log(1.03)
# Variance of log candidate against the mean of baseline and copy, and of one subject against another, in units of one
# subject's own: 1 + 1/2 and 1 + 1.
_AGAINST_TWO, _AGAINST_ONE = 1.5, 2.0


@dataclass(frozen=True)
class Ratio:
    """Baseline ÷ candidate, above 1 is faster, with the ends of an interval."""

    value: float
    low: float
    high: float

    @classmethod
    def around(cls, log: float, half_width: float) -> Ratio:
        """The ratio and its interval from logarithms."""
        half_width = min(half_width, 300.0)  # the exponentials of what is hardly known at all must stay finite
        return cls(math.exp(log), math.exp(log - half_width), math.exp(log + half_width))


@dataclass(frozen=True)
class Sample:
    """One log ratio for each launch, float64 [launches]; ``variance`` is in units of a single subject's."""

    logs: Array
    variance: float

    @classmethod
    def against_one(cls, subject_s: Array, other_s: Array) -> Sample:
        """How much faster a subject is than another, from seconds per call, float64 [launches, rounds]."""
        return cls(launch_values(np.log(other_s) - np.log(subject_s)), _AGAINST_ONE)

    @classmethod
    def against_two(cls, subject_s: Array, baseline_s: Array, copy_s: Array) -> Sample:
        """The same against the geometric mean of the baseline and its copy, which halves what those two add."""
        reference = (np.log(baseline_s) + np.log(copy_s)) / 2
        return cls(launch_values(reference - np.log(subject_s)), _AGAINST_TWO)

    @property
    def mean(self) -> float:
        """Mean over launches."""
        return float(self.logs.mean())


@dataclass(frozen=True)
class Noise:
    """Standard deviation of one subject's log time from launch to launch, and the degrees of freedom behind it."""

    deviation: float
    freedom: int

    @classmethod
    def pooled(cls, samples: Iterable[Sample]) -> Noise:
        """Pool the deviations of all samples: they ran in the same launches of the same machine."""
        squares, freedom = 0.0, 0
        for sample in samples:
            squares += float(((sample.logs - sample.mean) ** 2).sum()) / sample.variance
            freedom += len(sample.logs) - 1
        return cls(math.sqrt(squares / freedom) if freedom else math.inf, freedom)

    def half_width(self, sample: Sample, error: float) -> float:
        """Half the width of Student's interval of a sample's mean that is wrong in `error` of cases on one side.

        A sample whose own deviation is larger than the pooled one goes by its own: not every model is as steady as the
        others.
        """
        from scipy.stats import t  # late: half a second

        launches = len(sample.logs)
        if not self.freedom:
            return math.inf
        own = float(sample.logs.std(ddof=1)) if launches > 1 else 0.0
        deviation = max(own, self.deviation * math.sqrt(sample.variance))
        return float(t.ppf(1 - error, self.freedom)) * deviation / math.sqrt(launches)

    def interval(self, sample: Sample) -> Ratio:
        """The ratio with its 95% interval."""
        return Ratio.around(sample.mean, self.half_width(sample, 0.025))

    def bounds(self, sample: Sample, copy: Sample, comparisons: int) -> Ratio:
        """The ratio with bounds that hold at every look, for every comparison at once (group-sequential Bonferroni).

        To Student's half width comes what no launch averages away: `STICKS`, or what the baseline's copy shows beyond
        its own noise, whichever is more.

        Parameters
        ----------
        copy
            The baseline against its copy (A/A).
        comparisons
            How many ratios are decided on in this benchmark.
        """
        look = min(bisect_left(LOOKS, len(sample.logs)), len(LOOKS) - 1)
        share = (look + 1) / sum(range(1, len(LOOKS) + 1))
        half = self.half_width(sample, ERROR * share / max(1, comparisons))
        seen = abs(copy.mean) - self.half_width(copy, 0.025)
        return Ratio.around(sample.mean, half + max(STICKS, seen))


def launch_values(logs: Array) -> Array:
    """One value for each launch, from float64 [launches, rounds]: the median over its pairs of mirrored rounds.

    The mean of a pair is free of a drift that is linear over it; the median over pairs of a disturbance of few.
    """
    pairs = [logs[:, first : first + 2].mean(axis=1) for first in range(0, logs.shape[1], 2)]
    values: Array = np.median(np.stack(pairs, axis=1), axis=1)
    return values


def verdict_of(aa: Ratio) -> Literal["valid", "inconclusive"]:
    """Inconclusive where the interval of the A/A ratio excludes 1 or is wider than ±5%."""
    return "valid" if 1 - WIDEST <= aa.low <= 1 <= aa.high <= 1 + WIDEST else "inconclusive"


def percentiles(single_s: Array) -> tuple[float | None, float | None, float | None]:
    """50th, 90th and 99th percentile of single calls, float64 [calls]; None below 1, 100 and 1,000 calls."""
    p50, p90, p99 = (
        float(np.quantile(single_s, share)) if len(single_s) >= least else None
        for share, least in ((0.5, 1), (0.9, 100), (0.99, 1000))
    )
    return p50, p90, p99
