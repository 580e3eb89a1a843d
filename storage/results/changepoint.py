"""Find the night on which a noisy series changed; the change-point test weights nights by their precision.

The generalized likelihood ratio test [2]_ [3]_, a form of Page's CUSUM [1]_ for changes of unknown size, considers
every recent night except the last as a possible start of a lasting change [4]_. A night's variance is the variance that
its interval implies, plus the unknown night-to-night variance. The test averages over the latter, weighted by a prior
and the restricted likelihood [5]_ of the reference nights.

References
----------
.. [1] E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954).
.. [2] A. S. Willsky and H. L. Jones, "A generalized likelihood ratio approach to the detection and estimation of jumps
       in linear systems", IEEE Trans. Automatic Control 21 (1976).
.. [3] T. L. Lai, "Sequential changepoint detection in quality control and dynamical systems", JRSS B 57 (1995), for
       a limited window.
.. [4] D. M. Hawkins, P. Qiu and C. W. Kang, "The changepoint model for statistical process control", J. Quality
       Technology 35 (2003).
.. [5] H. D. Patterson and R. Thompson, "Recovery of inter-block information when block sizes are unequal", Biometrika
       58 (1971).
.. [6] W. G. Cochran, "The combination of estimates from different experiments", Biometrics 10 (1954); R. T. Birge, "The
       calculation of errors by the method of least squares", Phys. Rev. 40 (1932).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr, ndtri

REFERENCE_NIGHTS = 30  # maximum number of reference nights, which are the first nights of a series
LEAST_NIGHTS = 3  # minimum number of reference nights
WINDOW = 45  # number of recent nights among which the test looks for the start of a change
LEAST_EFFECT = 0.03  # minimum change on the logarithmic scale
LEAST_SIGMA = 1.0  # minimum change, in standard deviations of one night's value; smaller changes count as scatter
ALPHA = 5e-4  # one-sided significance level; ``benchmarks/regressions.py`` measures the rate of false alarms
EFFECTIVE_NIGHTS = 1.2  # minimum effective number of nights (Kish); a single night is not reported as a change
RESOLVED = 0.25  # a series is comparable if five nights would reveal a change of this size
_DISAGREE = 1e-3
_OVER = 5.0  # log likelihood ratio above which the last nights count as a return to the reference
_SPREAD = 0.5  # spread of the log-normal prior for the night-to-night deviation; the prior's median is 1.5%
_TAU = np.exp(np.linspace(np.log(0.002), np.log(0.4), 16))[:, None]
_LOG_PRIOR = -0.5 * (np.log(_TAU / 0.015) / _SPREAD) ** 2

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Scan:
    """Results for all possible starts of a change; each array has one element per start."""

    starts: Indices  # indices of the first changed nights
    reference: Floats  # mean of the values on the reference nights
    nights: Indices  # numbers of reference nights
    shift: Floats  # mean of the values since the start, minus the reference
    p: Floats  # one-sided p-value, or 1 if the change is too small, lasted only one night, or has ended
    evidence: Floats  # logarithm of the likelihood ratio
    resolution: float  # smallest shift that five nights would reveal

    @property
    def best(self) -> int:
        """Index of the start with the smallest ``p``."""
        return int(np.argmin(self.p))

    @property
    def is_change(self) -> bool:
        """Whether the series has departed from its reference."""
        return bool(self.p[self.best] < ALPHA)

    @property
    def is_comparable(self) -> bool:
        """Whether a change as large as `RESOLVED` would be detected."""
        return self.is_change or self.resolution <= RESOLVED


def scan(values: Floats, sds: Floats) -> Scan | None:
    """Compare the last nights of a series (logarithms, oldest first) with its first nights; None if it is too short.

    `sds` are the values' standard deviations. Deviations below the series' median are raised to the median, because an
    interval from only a few launches is often narrow by chance.
    """
    count = len(values)
    if count < LEAST_NIGHTS + 2:
        return None
    limit = _reference_nights(values, sds)
    chosen = np.r_[0 : min(limit, count), max(limit, count - WINDOW) : count]
    x, sd = values[chosen], np.maximum(sds, np.median(sds))[chosen]
    starts = np.arange(max(LEAST_NIGHTS, len(x) - WINDOW), len(x) - 1)
    nights = np.minimum(starts, limit)
    # The axes are [night-to-night deviation, number of nights]; column k contains the sums over the first k nights.
    weight = 1 / (_TAU**2 + sd**2)
    weights, logs, first, second, squares = map(
        _cumulated, (weight, np.log(weight), weight * x, weight * x * x, weight**2)
    )
    before = weights[:, nights]
    reference = first[:, nights] / before
    restricted = logs[:, nights] - np.log(before) - (second[:, nights] - before * reference**2)
    posterior = np.exp(restricted / 2 + _LOG_PRIOR - (restricted / 2 + _LOG_PRIOR).max(0))
    posterior /= posterior.sum(0)

    def averaged(number: Floats) -> Floats:
        return np.asarray((posterior * number).sum(0), float)

    since = weights[:, [-1]] - weights[:, starts]
    mean = (first[:, [-1]] - first[:, starts]) / since
    shift = mean - reference
    variance = 1 / since + 1 / before
    length = len(x) - starts
    # If nights differ by more than chance explains, widen the interval to match their scatter [6]_.
    q = np.maximum(second[:, [-1]] - second[:, starts] - since * mean**2, 0)
    variance = variance * np.where(q > chdtri(length - 1, _DISAGREE), q / (length - 1), 1)
    z = shift / np.sqrt(variance)
    effective = averaged(since**2 / (squares[:, [-1]] - squares[:, starts]))
    size, least = np.abs(averaged(shift)), LEAST_SIGMA * averaged(np.sqrt(length / since))
    counts = (size >= np.maximum(LEAST_EFFECT, least)) & (effective >= EFFECTIVE_NIGHTS)
    counts &= ~_is_over(x, posterior[:, -1] @ weight, averaged(reference), averaged(shift), starts)
    five = np.sqrt(1 / (weights[:, [-1]] - weights[:, [-6]]) + 1 / before) if len(x) > 5 else np.sqrt(variance)
    return Scan(
        starts=starts + (count - len(x)) * (starts >= limit),
        reference=averaged(reference),
        nights=nights,
        shift=averaged(shift),
        p=np.where(counts, averaged(ndtr(-np.abs(z))), 1.0),
        evidence=averaged(z**2) / 2,
        resolution=float(-ndtri(ALPHA) * averaged(five)[-1]),
    )


def _reference_nights(values: Floats, sds: Floats) -> int:
    """Return the number of reference nights; after an early change, only the nights before the change count."""
    if len(values) <= REFERENCE_NIGHTS:
        return REFERENCE_NIGHTS
    early = scan(values[:REFERENCE_NIGHTS], sds[:REFERENCE_NIGHTS])
    return int(early.starts[early.best]) if early is not None and early.is_change else REFERENCE_NIGHTS


def _is_over(x: Floats, weight: Floats, reference: Floats, shift: Floats, starts: Indices) -> NDArray[np.bool_]:
    """Return, for each start, whether a reversed Page test shows that the series has returned to the reference."""
    nights = np.cumsum(weight[::-1])[1:]  # sums over the last two nights, the last three nights, …
    values = np.cumsum((weight * x)[::-1])[1:]
    ratio = shift[:, None] * (values - nights * (reference + shift / 2)[:, None])
    since_start = np.arange(2, len(x) + 1) < (len(x) - starts)[:, None]
    return np.asarray((np.where(since_start, ratio, 0) < -_OVER).any(1))


def _cumulated(terms: Floats) -> Floats:
    """Return the sums over the first 0, 1, 2, … nights, as an array of shape ``[rows, nights + 1]``."""
    return np.concatenate([np.zeros((len(terms), 1)), np.cumsum(terms, 1)], 1)
