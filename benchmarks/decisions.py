"""How often does the gate decide rightly, after how many launches, and does the 95% interval hold the true ratio?

    python -m benchmarks.decisions

Simulates nights of three candidates that are all as many times as fast as the baseline, measured and judged by the
project's own code; only the clock is made up. Every subject is slower or faster by a random amount of its own in each
launch (standard deviation tau) and in each block (sigma). In every night that is decided on, one subject, the baseline,
its copy or a candidate, runs 3% slower or faster throughout, which no number of launches averages away; the last column
is of nights without that, whose candidates are 1.2 times as fast.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tasks.benchmark.messages import COPY_SUFFIX, PROFILES, LaunchReport, Subject, SubjectReport
from tasks.benchmark.protocol import Contest, Measured, Session
from tasks.gate import judge
from tasks.workload import Workload

BASELINE = "float/torchscript"
CANDIDATES = ("a/torchscript", "b/torchscript", "c/torchscript")
MIN_SPEEDUP, BIAS = 1.05, 0.03
NOISES = ((0.01, 0.02), (0.03, 0.05), (0.03, 0.10), (0.10, 0.10), (0.10, 0.20), (0.20, 0.20))
RATIOS = (2.0, 1.2, 1.05, 1.03)
WORKLOAD = Workload.model_validate(
    {
        "schema_version": 1,
        "name": "simulated",
        "description": "three equal candidates",
        "domain": "sequence",
        "data": {"kind": "random-sequence"},
        "model": {"kind": "lstm"},
        "checkpoint": {"kind": "seeded"},
        "recipe": [
            {"name": name.partition("/")[0], "method": "none", "runtimes": ["torchscript"]}
            for name in (BASELINE, *CANDIDATES)
        ],
        "benchmark": {"baseline": BASELINE},
        "gate": {"min_speedup": MIN_SPEEDUP},
    }
)


@dataclass(frozen=True)
class Machine(Session):
    """A session whose launches take no time: ``log_s`` is each subject's true log time."""

    tau: float = 0.0
    sigma: float = 0.0
    log_s: dict[str, float] | None = None
    generator: np.random.Generator | None = None

    def _launch(self, subjects: Sequence[Subject], earlier: Sequence[LaunchReport]) -> LaunchReport:
        assert self.generator is not None
        assert self.log_s is not None
        reports = {}
        for subject in subjects:
            offset = self.log_s[subject.name] + self.generator.normal(0, self.tau)
            logs = offset + self.generator.normal(0, self.sigma, self.profile.rounds)
            times = tuple(np.exp(logs).tolist())
            reports[subject.name] = SubjectReport(
                load_s=0, first_call_s=0, calls_per_block=1, round_s=times, single_s=(), cold_s=times, threads_used=1
            )
        return LaunchReport(
            subjects=reports, refused={}, start_s=0, first_block_s=0, end_s=0, cold_wall_s=0, timed_s=0, affinity=(),
            capability="", engines=(), voluntary_switches=0, involuntary_switches=0, modules=(),
        )  # fmt: skip


def measure_night(
    generator: np.random.Generator, tau: float, sigma: float, ratio: float, rounds: int, bias: float
) -> Measured:
    """One night's launches, until everything is decided or there are no more looks."""
    log_s = {BASELINE: 0.0, BASELINE + COPY_SUFFIX: 0.0, **dict.fromkeys(CANDIDATES, -math.log(ratio))}
    log_s[str(generator.choice(list(log_s)))] += math.log(1 + bias) * generator.choice([-1, 1])
    profile = PROFILES["quick"].model_copy(update={"budget_s": math.inf, "rounds": rounds})
    machine = Machine(BASELINE, profile, tau=tau, sigma=sigma, log_s=log_s, generator=generator)
    subjects = [Subject(name=name) for name in (BASELINE, *CANDIDATES)]
    return machine.measure(subjects, Contest(frozenset(CANDIDATES), MIN_SPEEDUP))


def promotes(measured: Measured) -> bool:
    """Whether the gate promotes one of the candidates."""
    rows = []
    for name in CANDIDATES:
        recipe, _, runtime = name.partition("/")
        ratio, bounds = measured.ratio(name), measured.bounds(name)
        rows.append(
            {
                "workload": WORKLOAD.name, "setting": "primary", "status": "ok", "recipe": recipe, "runtime": runtime,
                "speedup": ratio.value, "speedup_bound_low": bounds.low, "speedup_bound_high": bounds.high,
            }
        )  # fmt: skip
    return any(decision.decision == "promote" for decision in judge(WORKLOAD, rows).decisions)


def main() -> None:
    """Print one line for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=500, help="simulated nights of each kind")
    parser.add_argument("--rounds", type=int, default=PROFILES["standard"].rounds, help="rounds in a launch")
    arguments = parser.parse_args()
    heading = " | ".join(f"{ratio:g}×" for ratio in RATIOS)
    print(f"| tau | sigma | {heading} | 95% interval holds the ratio |")
    print(f"|---|---|{'---|' * len(RATIOS)}---|")
    for tau, sigma in NOISES:
        nights_of = partial(_nights, arguments.nights, tau, sigma, rounds=arguments.rounds)
        cells = []
        for ratio in RATIOS:
            nights = nights_of(ratio, bias=BIAS)
            promoted = np.mean([promotes(night) for night in nights])
            launches = np.mean([len(night.launches) for night in nights])
            cells.append(f"{promoted:.1%} ({launches:.1f})")
        found = [night.ratio(name) for night in nights_of(1.2, bias=0.0) for name in CANDIDATES]
        held = np.mean([ratio.low <= 1.2 <= ratio.high for ratio in found])
        print(f"| {tau:.0%} | {sigma:.0%} | {' | '.join(cells)} | {held:.1%} |", flush=True)


def _nights(count: int, tau: float, sigma: float, ratio: float, *, rounds: int, bias: float) -> list[Measured]:
    generator = np.random.default_rng(0)
    return [measure_night(generator, tau, sigma, ratio, rounds, bias) for _ in range(count)]


if __name__ == "__main__":
    main()
