"""Since when a noisy series has left its reference: a change-point test of nights that differ in precision.

Every night but the last is tried as the start of a lasting change: the nights since then against the reference, by
their likelihood ratio, each night weighing by its precision. Page's CUSUM [1]_ sums up the evidence for a change of one
given size; this takes the size that fits best, the generalized likelihood ratio [2]_ [3]_, so that nights of very
different precision count for what they are worth. In change-point form [4]_ it needs no separate phase in which a
reference is collected. A night's variance is its interval's and the night-to-night variance of the series. That is not
known: it is averaged over, with its restricted likelihood [5]_ from the reference nights and a prior, so that a short
history has the wide tails that it deserves.

References
----------
.. [1] E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954).
.. [2] A. S. Willsky and H. L. Jones, "A generalized likelihood ratio approach to the detection and estimation of jumps
       in linear systems", IEEE Trans. Automatic Control 21 (1976).
.. [3] T. L. Lai, "Sequential changepoint detection in quality control and dynamical systems", JRSS B 57 (1995): the
       same, limited to a window.
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

REFERENCE_NIGHTS = 30  # the first ones; the reference stays what they say
LEAST_NIGHTS = 3  # without as many in the reference nothing is compared
WINDOW = 45  # nights that a change may have begun on, counted back from the last
LEAST_EFFECT = 0.03  # of the logarithm; smaller changes are none
LEAST_SIGMA = 1.0  # in standard deviations of a night: what a series cannot hold still by itself is no change
ALPHA = 5e-4  # one-sided; benchmarks/regressions.py shows what comes of it
EFFECTIVE_NIGHTS = 1.2  # Kish's effective number: no single night decides
RESOLVED = 0.25  # a series that would not show such a change within five nights is not comparable
_DISAGREE = 1e-3
_OVER = 5.0  # logarithm of the likelihood ratio at which the last nights are back at the reference
_SPREAD = 0.5  # of the prior, log-normal, around a night-to-night standard deviation of 1.5%
_TAU = np.exp(np.linspace(np.log(0.002), np.log(0.4), 16))[:, None]
_LOG_PRIOR = -0.5 * (np.log(_TAU / 0.015) / _SPREAD) ** 2

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Scan:
    """Every possible start of a change up to the last night, one element each.

    ``starts`` index the first changed night. ``reference`` is the mean of the reference nights, as a logarithm, and
    ``nights`` their number; ``shift`` is the mean of the nights since, less the reference. ``p`` is the one-sided
    probability of such a shift by chance; 1 if the change is too small to matter, one night's, or over. ``evidence`` is
    the logarithm of the likelihood ratio, and ``resolution`` the least shift that five nights would show.
    """

    starts: Indices
    reference: Floats
    nights: Indices
    shift: Floats
    p: Floats
    evidence: Floats
    resolution: float

    @property
    def best(self) -> int:
        """Position of the most certain start."""
        return int(np.argmin(self.p))

    @property
    def is_change(self) -> bool:
        """Whether the series has left its reference."""
        return bool(self.p[self.best] < ALPHA)

    @property
    def is_comparable(self) -> bool:
        """Whether a change of `RESOLVED` would show."""
        return self.is_change or self.resolution <= RESOLVED


def scan(values: Floats, sds: Floats) -> Scan | None:
    """Compare the last nights of a series with its first ones; None if there are too few.

    Parameters
    ----------
    values
        One number a night, the oldest first, on a logarithmic scale.
    sds
        Standard deviation of each by its own interval. One below the series' median counts as the median: few launches
        say little about their own scatter, and a narrow interval is luck more often than precision.
    """
    count = len(values)
    if count < LEAST_NIGHTS + 2:
        return None
    limit = _reference_nights(values, sds)
    kept = np.r_[0 : min(limit, count), max(limit, count - WINDOW) : count]
    x, sd = values[kept], np.maximum(sds, np.median(sds))[kept]
    starts = np.arange(max(LEAST_NIGHTS, len(x) - WINDOW), len(x) - 1)
    nights = np.minimum(starts, limit)
    # [night-to-night deviation, sums over the nights before]; the sums' columns are picked by where a range ends.
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
    # Nights that contradict each other more than by chance: their interval is as wide as they scatter [6]_.
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
    """Number of nights in the reference; fewer where a change came before it was complete."""
    if len(values) <= REFERENCE_NIGHTS:
        return REFERENCE_NIGHTS
    early = scan(values[:REFERENCE_NIGHTS], sds[:REFERENCE_NIGHTS])
    return int(early.starts[early.best]) if early is not None and early.is_change else REFERENCE_NIGHTS


def _is_over(x: Floats, weight: Floats, reference: Floats, shift: Floats, starts: Indices) -> NDArray[np.bool_]:
    """Whether the last nights, two or more, are back at the reference: Page's test for the way back."""
    nights = np.cumsum(weight[::-1])[1:]  # of the last two nights, of the last three, …
    values = np.cumsum((weight * x)[::-1])[1:]
    ratio = shift[:, None] * (values - nights * (reference + shift / 2)[:, None])
    since_start = np.arange(2, len(x) + 1) < (len(x) - starts)[:, None]
    return np.asarray((np.where(since_start, ratio, 0) < -_OVER).any(1))


def _cumulated(terms: Floats) -> Floats:
    """Sums over the first 0, 1, 2, … nights: [rows, nights + 1]."""
    return np.concatenate([np.zeros((len(terms), 1)), np.cumsum(terms, 1)], 1)
