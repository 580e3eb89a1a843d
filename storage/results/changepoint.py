"""Find the night on which a noisy series left its reference: a change-point test for nights of different precision.

Every night but the last is tried as the start of a lasting change. The nights since then are compared with the
reference by their likelihood ratio, weighted by precision. Page's CUSUM [1]_ sums the evidence for a change of a fixed
size. This test takes the size that fits best, the generalized likelihood ratio [2]_ [3]_, which suits nights of very
different precision. In change-point form [4]_ it needs no separate phase to collect a reference. A night's variance is
the variance of its interval plus the night-to-night variance of the series. The latter is unknown, so the test
averages over it, weighted by a prior and the restricted likelihood [5]_ of the reference nights. A short history
therefore gets wide tails.

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

REFERENCE_NIGHTS = 30  # the first nights of a series, which fix its reference
LEAST_NIGHTS = 3  # least number of reference nights for a comparison
WINDOW = 45  # last nights on which a change may have begun
LEAST_EFFECT = 0.03  # least change of the logarithm
LEAST_SIGMA = 1.0  # least change in standard deviations of a night: a smaller change is ordinary scatter
ALPHA = 5e-4  # one-sided; benchmarks/regressions.py shows its false alarms
EFFECTIVE_NIGHTS = 1.2  # least effective number of nights (Kish), so that no single night decides
RESOLVED = 0.25  # a series is comparable if five nights would show a change of this size
_DISAGREE = 1e-3
_OVER = 5.0  # logarithm of the likelihood ratio at which the last nights are back at the reference
_SPREAD = 0.5  # scale of the log-normal prior around a night-to-night standard deviation of 1.5%
_TAU = np.exp(np.linspace(np.log(0.002), np.log(0.4), 16))[:, None]
_LOG_PRIOR = -0.5 * (np.log(_TAU / 0.015) / _SPREAD) ** 2

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Scan:
    """All possible starts of a change up to the last night; the arrays have one element per start.

    ``starts`` are indices of the first changed night. ``reference`` is the mean logarithm of the reference nights, and
    ``nights`` their number. ``shift`` is the mean of the nights since, less the reference. ``p`` is the one-sided
    probability of such a shift by chance, or 1 if the change is too small, lasted one night, or is over. ``evidence``
    is the logarithm of the likelihood ratio. ``resolution`` is the least shift that five nights would show.
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
        """Index of the most certain start."""
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
    """Compare the last nights of a series with its first nights; return None if there are too few.

    Parameters
    ----------
    values
        One number per night on a logarithmic scale, the oldest first.
    sds
        Standard deviation of each value, from its interval. Values below the series' median are raised to it: an
        interval from few launches is more often narrow by luck than by precision.
    """
    count = len(values)
    if count < LEAST_NIGHTS + 2:
        return None
    limit = _reference_nights(values, sds)
    chosen = np.r_[0 : min(limit, count), max(limit, count - WINDOW) : count]
    x, sd = values[chosen], np.maximum(sds, np.median(sds))[chosen]
    starts = np.arange(max(LEAST_NIGHTS, len(x) - WINDOW), len(x) - 1)
    nights = np.minimum(starts, limit)
    # Arrays [night-to-night deviation, number of nights summed]; the end of a range of nights selects the column.
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
    # If nights contradict each other more than by chance, widen their interval to their scatter [6]_.
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
    """Return the number of nights in the reference; fewer if a change came before it was complete."""
    if len(values) <= REFERENCE_NIGHTS:
        return REFERENCE_NIGHTS
    early = scan(values[:REFERENCE_NIGHTS], sds[:REFERENCE_NIGHTS])
    return int(early.starts[early.best]) if early is not None and early.is_change else REFERENCE_NIGHTS


def _is_over(x: Floats, weight: Floats, reference: Floats, shift: Floats, starts: Indices) -> NDArray[np.bool_]:
    """Return whether the last two or more nights are back at the reference, by Page's test in reverse."""
    nights = np.cumsum(weight[::-1])[1:]  # the last two nights, the last three, …
    values = np.cumsum((weight * x)[::-1])[1:]
    ratio = shift[:, None] * (values - nights * (reference + shift / 2)[:, None])
    since_start = np.arange(2, len(x) + 1) < (len(x) - starts)[:, None]
    return np.asarray((np.where(since_start, ratio, 0) < -_OVER).any(1))


def _cumulated(terms: Floats) -> Floats:
    """Return sums over the first 0, 1, 2, … nights; the shape is [rows, nights + 1]."""
    return np.concatenate([np.zeros((len(terms), 1)), np.cumsum(terms, 1)], 1)
