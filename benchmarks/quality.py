"""How often 95% intervals of a difference in quality cover the true one, on simulated samples.

Prints tables for docs/measured.md::

    python -m benchmarks.quality
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import t

from tasks.data.paired import PairedDifference, bootstrap_difference, score_difference, serial_difference

Array = NDArray[np.float64]
Interval = Callable[[Array, Array], PairedDifference]
IMAGES, TRIALS = 1024, 2000
# Shares of images that a candidate gains and loses against the baseline.
CHANGES = ((0.0, 0.0), (0.0, 0.001), (0.001, 0.003), (0.003, 0.003), (0.02, 0.04))
# Words over which a difference is remembered, and the share of that part in the variance of blocks of 100 words.
MEMORIES = ((1.0, 0.0), (100.0, 0.35), (300.0, 0.35), (600.0, 0.35))
STRETCH = 20


def main() -> None:
    """Print both tables."""
    print_right_or_wrong()
    print_series()


def print_right_or_wrong() -> None:
    """Coverage of the score interval and of the bootstrap for top-1."""
    print("| images gained / lost | bootstrap: coverage | half-width | score: coverage | half-width |")
    print("|---|---:|---:|---:|---:|")
    for gain, loss in CHANGES:
        rng, cells = np.random.default_rng(0), []
        tables = rng.multinomial(IMAGES, [gain, loss, 1 - gain - loss], size=TRIALS)
        distinct, counts = np.unique(tables, axis=0, return_counts=True)
        for interval in (bootstrap_difference, score_difference):
            found = np.array([interval(*_answers(*table)) for table in distinct])
            inside = (found[:, 1] <= 100 * (gain - loss) + 1e-9) & (100 * (gain - loss) - 1e-9 <= found[:, 2])
            half = np.average((found[:, 2] - found[:, 1]) / 2, weights=counts)
            cells.append(f"{np.average(inside, weights=counts):.1%} | {half:.2f}")
        print(f"| {gain:.1%} / {loss:.1%} | {' | '.join(cells)} |")
    print()


def _answers(gained: int, lost: int, same: int) -> tuple[Array, Array]:
    before = np.repeat([0.0, 100.0, 100.0], [gained, lost, same])
    return before, np.repeat([100.0, 0.0, 100.0], [gained, lost, same])


def print_series() -> None:
    """Coverage of blocks of a fixed length and of fixed numbers of blocks, for a language model's words."""
    methods: dict[str, Interval] = {
        "100-word blocks": lambda _, after: _blocks(after, len(after) * STRETCH // 100),
        "20 blocks": lambda _, after: _blocks(after, 20),
        "10 blocks": serial_difference,
    }
    print(f"| words | memory | correlated | {' | '.join(f'{name}: coverage, width' for name in methods)} |")
    print("|---:|---:|---:|" + "---:|" * len(methods))
    for words, trials in ((7_600, TRIALS), (43_400, TRIALS // 2), (245_000, TRIALS // 4)):
        for memory, share in MEMORIES:
            rng = np.random.default_rng(0)
            series = [_series(rng, words, memory, share) for _ in range(trials)]
            zeros = np.zeros(len(series[0]))
            ends = {name: np.array([method(zeros, each) for each in series]) for name, method in methods.items()}
            width = {name: float((found[:, 2] - found[:, 1]).mean()) for name, found in ends.items()}
            cells = [
                f"{((found[:, 1] <= 0) & (found[:, 2] >= 0)).mean():.1%}, {width[name] / width['20 blocks']:.2f}"
                for name, found in ends.items()
            ]
            print(f"| {words:,} | {memory:.0f} | {share:.0%} | {' | '.join(cells)} |")


def _blocks(differences: Array, count: int) -> PairedDifference:
    means = np.array([block.mean() for block in np.array_split(differences, count)])
    mean, half = float(means.mean()), float(t.ppf(0.975, count - 1) * means.std(ddof=1) / math.sqrt(count))
    return PairedDifference(mean, mean - half, mean + half)


def _series(rng: np.random.Generator, words: int, memory: float, share: float) -> Array:
    """Differences of stretches of words: heavy-tailed noise, and an autoregressive part that is remembered."""
    length, kept = words // STRETCH, math.exp(-STRETCH / memory)
    noise = rng.standard_t(4, size=length) / math.sqrt(2)
    remembered = lfilter([math.sqrt(1 - kept**2)], [1, -kept], rng.normal(size=length + 1000))[1000:]
    differences: Array = noise + math.sqrt(share / (1 - share) * STRETCH / 100) * remembered
    return differences


if __name__ == "__main__":
    main()
