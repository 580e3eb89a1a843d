"""Does the regressions view find a planted slow-down, and how often does it cry wolf?

Simulates nights of raw timed blocks (baseline and candidate interleaved), makes each night's ratio and its bootstrap
interval from them, and evaluates the shipped SQL night by night. Usage: ``python benchmarks/regressions.py``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.results.catalog import refresh
from storage.results.regressions import find_regressions
from storage.results.writer import ResultsStore

FIRST = dt.date(2025, 1, 1)
BLOCKS = 40  # 5 launches of 8 rounds, the standard profile
RESAMPLES = 200
WARM_UP = 12
SLOW_DOWN = 0.9


@dataclass(frozen=True)
class Noise:
    """Relative standard deviations: of one timed block, of the machine's speed and of the true ratio night by night."""

    name: str
    block: float
    machine: float
    ratio: float


NOISES = (
    Noise("5% per block, 5% machine speed per night", 0.05, 0.05, 0.0),
    Noise("the same, and 1% in the ratio itself per night", 0.05, 0.05, 0.01),
    Noise("the same, and 2.5% in the ratio itself per night", 0.05, 0.05, 0.025),
    Noise("the same, and 5% in the ratio itself per night", 0.05, 0.05, 0.05),
)


def night_ratios(generator: np.random.Generator, noise: Noise, true_ratios: np.ndarray) -> np.ndarray:
    """One night's median ratio of interleaved blocks with its 95% bootstrap interval: [candidates, 3]."""
    count = len(true_ratios)
    machine = np.exp(generator.normal(0, noise.machine))
    ratios = true_ratios * np.exp(generator.normal(0, noise.ratio, count))
    baseline = 0.2 * machine * np.exp(generator.normal(0, noise.block, (count, BLOCKS)))
    candidate = 0.2 / ratios[:, None] * machine * np.exp(generator.normal(0, noise.block, (count, BLOCKS)))
    picks = generator.integers(0, BLOCKS, (RESAMPLES, BLOCKS))
    drawn = np.median(baseline[:, picks], axis=2) / np.median(candidate[:, picks], axis=2)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    return np.stack([np.median(baseline, axis=1) / np.median(candidate, axis=1), low, high], axis=1)


def row(run_id: str, night: dt.date, workload: str, ratio: np.ndarray) -> dict[str, object]:
    """A measurement with what the regressions view looks at."""
    value, low, high = (float(number) for number in ratio)
    return {
        "run_id": run_id,
        "night": night,
        "workload": workload,
        "recipe": "dynamic",
        "runtime": "eager",
        "setting": "primary",
        "attempt": 1,
        "threads": 1,
        "batch_size": 1,
        "status": "ok",
        "measured_at": dt.datetime.combine(night, dt.time(3), dt.UTC),
        "profile": "standard",
        "baseline": "float/eager",
        "is_baseline": False,
        "fingerprint": "f" * 64,
        "speedup": value,
        "speedup_low": low,
        "speedup_high": high,
        "verdict": "valid",
    }


def simulate(noise: Noise, quiet: int, planted: int, nights: int, seed: int) -> tuple[float, list[float], float]:
    """False alarms per candidate; share of slow-downs found by night 1, 2, 3 and 5; the interval's half width."""
    generator = np.random.default_rng(seed)
    names = [f"quiet-{index}" for index in range(quiet)] + [f"planted-{index}" for index in range(planted)]
    step = WARM_UP + 20
    widths = []
    with tempfile.TemporaryDirectory() as folder:
        store = ResultsStore(Path(folder))
        for index in range(WARM_UP + nights):
            night = FIRST + dt.timedelta(days=index)
            true = np.where(np.arange(len(names)) < quiet, 2.0, 2.0 * (SLOW_DOWN if index >= step else 1.0))
            ratios = night_ratios(generator, noise, true)
            widths.append((ratios[:, 2] - ratios[:, 1]) / 2 / ratios[:, 0])
            rows = [row(f"run-{night}", night, name, ratio) for name, ratio in zip(names, ratios, strict=True)]
            store.append("measurements", rows, f"run-{night}", dt.datetime.combine(night, dt.time(4), dt.UTC))
        refresh(store.root)
        false_alarms = 0
        found: dict[str, int] = {}
        for index in range(WARM_UP, WARM_UP + nights):
            for regression in find_regressions(store.root, FIRST + dt.timedelta(days=index)):
                if regression.workload.startswith("quiet"):
                    false_alarms += regression.is_bad
                elif regression.kind == "slower" and index >= step:
                    found.setdefault(regression.workload, index - step + 1)
    shares = [sum(night <= by for night in found.values()) / planted for by in (1, 2, 3, 5)]
    return false_alarms / quiet, shares, float(np.mean(widths))


def main() -> None:
    """Print one line per kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", type=int, default=60, help="candidates without a change")
    parser.add_argument("--planted", type=int, default=60, help="candidates with a 10%% slow-down")
    parser.add_argument("--nights", type=int, default=40, help="nights that are looked at, each candidate on each")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("| noise | interval | false alarms in 200 nights | found on night 1 | by night 2 | by night 3 | by night 5 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for noise in NOISES:
        alarms, shares, width = simulate(noise, arguments.quiet, arguments.planted, arguments.nights, arguments.seed)
        found = " | ".join(f"{share:.0%}" for share in shares)
        print(f"| {noise.name} | ±{width:.1%} | {alarms * 200 / arguments.nights:.2f} | {found} |", flush=True)


if __name__ == "__main__":
    main()
