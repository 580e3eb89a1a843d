"""How often the benchmark's 95% interval covers the true ratio, on simulated launches with a known one.

    python -m benchmarks.coverage

Noise: each launch has an offset of its own (where things lie in memory, which processor), each round has its own noise,
and one round in ten is disturbed and slower by up to 10%, in either the baseline's or the candidate's block.
"""

from __future__ import annotations

import argparse

import numpy as np

from tasks.benchmark.messages import PROFILES
from tasks.benchmark.statistics import Array, interval_of_logs

_RESAMPLES = 1000
NOISES = {"quiet": (0.002, 0.005, 0.0), "shared": (0.005, 0.02, 0.1), "launches differ": (0.02, 0.01, 0.1)}


def simulate(launches: int, rounds: int, noise: str, generator: np.random.Generator) -> Array:
    """Log ratios, float64 [launches, rounds], around the true value 0."""
    between, within, disturbed = NOISES[noise]
    logs = generator.normal(0, between, (launches, 1)) + generator.normal(0, within, (launches, rounds))
    hit = generator.random((launches, rounds)) < disturbed
    side = generator.choice([-1.0, 1.0], (launches, rounds))
    noisy: Array = logs + hit * side * generator.exponential(0.03, (launches, rounds))
    return noisy


def main() -> None:
    """Print coverage and width by profile and noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmarks", type=int, default=400, help="simulated benchmarks of each kind")
    count = parser.parse_args().benchmarks
    print(f"{'profile':10}{'noise':18}{'coverage':>10}{'median width':>14}{'A/A passes':>12}")
    for profile in PROFILES.values():
        for noise in NOISES:
            generator = np.random.default_rng(0)
            found = np.array(
                [
                    interval_of_logs(simulate(profile.launches, profile.rounds, noise, generator), _RESAMPLES)
                    for _ in range(count)
                ]
            )
            covered = (found[:, 0] <= 0) & (found[:, 1] >= 0)
            narrow = np.abs(found).max(axis=1) <= np.log(1.05)
            width = np.median(found[:, 1] - found[:, 0])
            print(f"{profile.name:10}{noise:18}{covered.mean():10.1%}{width:14.2%}{(covered & narrow).mean():12.1%}")


if __name__ == "__main__":
    main()
