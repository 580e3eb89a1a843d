"""From block times to ratios with intervals; NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# An A/A interval wider than this to either side says that the machine is too noisy to tell small differences.
WIDEST = 0.05
_RESAMPLES, _SEED = 10_000, 20_000


@dataclass(frozen=True)
class Ratio:
    """Baseline ÷ candidate, above 1 is faster, with its 95% interval."""

    value: float
    low: float
    high: float


def verdict_of(aa: Ratio) -> Literal["valid", "inconclusive"]:
    """Inconclusive where the interval of the A/A ratio excludes 1 or is wider than ±5%."""
    return "valid" if 1 - WIDEST <= aa.low <= 1 <= aa.high <= 1 + WIDEST else "inconclusive"


def speed_ratio(candidate_s: Array, baseline_s: Array) -> Ratio:
    """How much faster the candidate is, from seconds per call, float64 [launches, rounds], of the same rounds."""
    logs = np.log(candidate_s / baseline_s)
    low, high = interval_of_logs(logs)
    return Ratio(float(np.exp(-median_of_medians(logs))), float(np.exp(-high)), float(np.exp(-low)))


def interval_of_logs(logs: Array, resamples: int = _RESAMPLES) -> tuple[float, float]:
    """95% interval of the median of medians of float64 [launches, rounds].

    Percentiles of a two-stage cluster bootstrap (Davison and Hinkley, Bootstrap Methods and their Application, 1997,
    section 3.8), widened about the estimate by sqrt(n / (n - 1)) for n launches: resampling n clusters gives a variance
    that is too small by (n - 1) / n (Hesterberg, What Teachers Should Know About the Bootstrap, The American
    Statistician 69, 2015). That matters for the two launches of the quick profile.
    """
    launches = max(2, len(logs))
    widening = math.sqrt(launches / (launches - 1))
    middle = median_of_medians(logs)
    low, high = np.quantile(bootstrap_medians(logs, resamples), [0.025, 0.975])
    return middle + min(0.0, low - middle) * widening, middle + max(0.0, high - middle) * widening


def median_of_medians(logs: Array) -> float:
    """Median over launches of the medians over rounds, of float64 [launches, rounds]."""
    return float(np.median(np.median(logs, axis=1)))


def bootstrap_medians(logs: Array, resamples: int) -> Array:
    """Medians of medians of resampled launches, and of resampled rounds within them; float64 [resamples]."""
    launches, rounds = logs.shape
    generator = np.random.default_rng(_SEED)
    chosen = generator.integers(launches, size=(resamples, launches, 1))
    within = generator.integers(rounds, size=(resamples, launches, rounds))
    medians: Array = np.median(np.median(logs[chosen, within], axis=2), axis=1)
    return medians


def percentiles(single_s: Array) -> tuple[float | None, float | None, float | None]:
    """50th, 90th and 99th percentile of single calls, float64 [calls]; None below 1, 100 and 1,000 calls."""
    p50, p90, p99 = (
        float(np.quantile(single_s, share)) if len(single_s) >= least else None
        for share, least in ((0.5, 1), (0.9, 100), (0.99, 1000))
    )
    return p50, p90, p99
