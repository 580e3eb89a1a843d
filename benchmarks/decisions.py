"""How often does the gate decide rightly, after how many launches, and does the 95% interval hold the true ratio?

    python -m benchmarks.decisions

Simulates nights with eight candidates that are faster than the baseline. The project's own code measures and judges
them; only the clock is made up. Every subject is slower or faster by a random amount of its own in each launch
(standard deviation tau) and in each block (sigma). One subject, the baseline, its copy or a candidate, runs 3% slower
or faster throughout, which no number of launches averages away. The column "noise" names one change:

- first x 3: the first candidate has three times the tau and sigma of the others;
- AR(1) 0.3: the noise of each subject in a launch correlates with its noise in the launch before;
- outlier: in one of the first three launches, one subject takes 30% longer.

The columns 2x, 1.2x and 1.2x to 2x are nights that end when the contest is decided. All candidates are as many times
as fast as the baseline, or lie evenly between two ratios. A cell is the share of nights that promote a candidate; in
brackets, the mean number of launches, and the mean number of times that a launch times a candidate. The next columns
are nights that may end after any look, as their budget has it. "False" is the share of nights in which any look would
promote a candidate that is exactly as fast as `min_speedup`: if all candidates are ("all"), and if only the first is,
because the others are so fast or so slow that they are decided and leave their part of the error to it ("one"). The
share of 95% intervals that hold the true ratio follows, for the first candidate and for the others: the mean over the
looks, and in brackets the least and the most of any look. "At the end" is the same share when the nights of 1.2x to 2x
end, over all candidates.

The second table is about float candidates. Two float files in other runtimes are 1.5 times as fast as the baseline
("equal"), or one of them is 1.5 times and the other 1.4 times as fast ("close"). "False" is the share of nights in
which any look would promote a candidate that is exactly as fast as the fastest float file. The other columns are the
shares of 95% intervals of int8_gain and over_best_float that hold the true ratio, after 3, 5 and 10 launches.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from benchmarks.simulated import BASELINE, CANDIDATES, COPY, SUBJECTS, Conditions, Machine, Night, lines, subject
from tasks.decide.gate import judge
from tasks.measure.benchmark.contest import Contest, Measured
from tasks.measure.benchmark.messages import PROFILES, LaunchReport
from tasks.measure.benchmark.statistics import CHECKED_AT, Noise, Ratio, Sample, step_down
from tasks.workload import Workload
from tasks.workload.recipe import CandidateName

RATIOS = ((2.0, 2.0), (1.2, 1.2), (1.2, 2.0))
MIN_SPEEDUP = 1.05
FLOATS = ("float/onnxruntime", "float/openvino")
RULE = Contest(
    frozenset(CANDIDATES[:4]),
    MIN_SPEEDUP,
    fastest_wins=True,
    twins=dict.fromkeys(CANDIDATES[:4], FLOATS[0]),
    floats=frozenset({BASELINE, *FLOATS}),
    min_over_best_float=1.0,
)
SPEEDS = {"equal": (1.5, 1.5), "close": (1.5, 1.4)}
CONTEST = Contest(frozenset(CANDIDATES), MIN_SPEEDUP, fastest_wins=True)
WORKLOAD = Workload.model_validate(
    {
        "schema_version": 1,
        "name": "simulated",
        "description": "equal candidates",
        "domain": "sequence",
        "data": {"kind": "random-sequence"},
        "model": {"kind": "lstm"},
        "checkpoint": {"kind": "seeded"},
        "recipe": [
            {"name": CandidateName.parse(name).recipe, "method": "none", "runtimes": ["torchscript"]}
            for name in (BASELINE, *CANDIDATES)
        ],
        "benchmark": {"baseline": BASELINE},
        "gate": {"min_speedup": MIN_SPEEDUP},
    }
)


Row = dict[str, Any]


def compared(generator: np.random.Generator, conditions: Conditions, speeds: tuple[float, float], rounds: int) -> Row:
    """Simulate a night with two float files; return what is true of it, after each look and number of launches."""
    night = conditions.night(generator, (1.0, 1.0), rounds)
    # The last candidates of the simulation stand for the float files.
    names = (*SUBJECTS[:6], *FLOATS)
    gains = np.log([1, 1, *[max(speeds)] * 4, *speeds])
    night = Night(night.logs[:, :8] - gains[None, :, None], night.true[:8] - gains)
    best = [np.mean(night.true[:2]), *night.true[6:]]
    row: Row = {"false": False}
    reports: list[LaunchReport] = []
    machine = Machine(CandidateName.parse(BASELINE), PROFILES["quick"], night=night, names=names)
    subjects = tuple(map(subject, names))
    for launches in range(1, 11):
        reports.append(machine._launch(subjects, reports, RULE.caches))
        if launches not in CHECKED_AT:
            continue
        measured = Measured(BASELINE, COPY, subjects, 1, tuple(reports), {}, RULE)
        bounds = [measured.over_best_float_bounds(name) for name in RULE.contenders]
        row["false"] = row["false"] or any(each is not None and each.low >= 1 for each in bounds)
        for index in range(2, 6):
            true, factors, over = (
                night.true[index],
                measured.gains(names[index]),
                measured.over_best_float(names[index]),
            )
            assert factors is not None
            assert over is not None
            for column, ratio, log in (("int8", factors[1], night.true[6] - true), ("over", over, min(best) - true)):
                row.setdefault(f"{column} {launches}", []).append(ratio.low <= math.exp(log) <= ratio.high)
    return row


def measure(night: Night) -> Measured:
    """The night's launches, until everything is decided or there are no more looks."""
    profile = PROFILES["quick"].model_copy(update={"budget_s": math.inf})
    machine = Machine(CandidateName.parse(BASELINE), profile, night=night)
    return machine.measure([subject(key) for key in (BASELINE, *CANDIDATES)], CONTEST)


def promotes(measured: Measured) -> bool:
    """Whether the gate promotes one of the candidates."""
    rows = []
    for name in CANDIDATES:
        candidate, ratio, bounds = CandidateName.parse(name), measured.ratio(name), measured.bounds(name)
        rows.append(
            {
                "workload": WORKLOAD.name, "setting": "primary", "status": "ok",
                "recipe": candidate.recipe, "runtime": candidate.runtime,
                "speedup": ratio.value, "speedup_bound_low": bounds.low, "speedup_bound_high": bounds.high,
            }
        )  # fmt: skip
    return any(decision.decision == "promote" for decision in judge(WORKLOAD, rows, None).decisions)


def holds(night: Night, name: str, interval: Ratio) -> bool:
    """Whether an interval holds a candidate's true ratio."""
    return interval.low <= math.exp(night.true_ratio(name)) <= interval.high


def looks(night: Night) -> Iterator[tuple[list[bool], list[bool]]]:
    """After each look, whether the lower bound of each candidate lets it through, and whether its interval is right."""
    samples = night.samples()
    for launches in CHECKED_AT:
        seen = {name: Sample(sample.logs[:launches], sample.variance) for name, sample in samples.items()}
        noise = Noise.pooled(seen.values())
        bounds = bounds_of(noise, seen)
        right = [holds(night, name, noise.interval(seen[name])) for name in CANDIDATES]
        yield [ratio.low >= MIN_SPEEDUP for ratio in bounds], right


def bounds_of(noise: Noise, seen: Mapping[str, Sample]) -> list[Ratio]:
    """Return the candidates' bounds, with the error shared as in a benchmark."""

    def bounds(comparisons: int) -> list[Ratio]:
        return [noise.bounds(seen[name], seen[COPY], comparisons) for name in CANDIDATES]

    def decided(comparisons: int) -> int:
        return sum(not ratio.low < MIN_SPEEDUP <= ratio.high for ratio in bounds(comparisons))

    return bounds(step_down(CONTEST.comparisons, decided))


def others_clear(night: Night) -> Night:
    """Make four of the other candidates twice as fast as the first, and three half as fast."""
    faster = np.zeros(len(SUBJECTS))
    faster[3:7], faster[7:] = math.log(2), -math.log(2)
    return Night(night.logs - faster[None, :, None], night.true - faster)


def decided(
    generator: np.random.Generator, conditions: Conditions, ratios: tuple[float, float], nights: int, rounds: int
) -> tuple[str, list[bool]]:
    """Simulate nights that go on until the contest is decided; return a cell, and which intervals are right."""
    promoted, launches, timed = 0, 0, 0
    right: list[bool] = []
    for _ in range(nights):
        night = conditions.night(generator, ratios, rounds)
        measured = measure(night)
        promoted += promotes(measured)
        launches += len(measured.launches)
        timed += sum(len(measured.of(name)) for name in CANDIDATES)
        right += [holds(night, name, measured.ratio(name)) for name in CANDIDATES]
    return f"{promoted / nights:.1%} ({launches / nights:.1f}, {timed / nights:.0f})", right


def looked_at(generator: np.random.Generator, conditions: Conditions, nights: int, rounds: int) -> list[str]:
    """Simulate nights that may end at any look; return cells of the table."""
    false, rights = [], []
    for _ in range(nights):
        night = conditions.night(generator, (MIN_SPEEDUP, MIN_SPEEDUP), rounds)
        equal, clear = list(looks(night)), looks(others_clear(night))
        false.append((any(any(passed) for passed, _ in equal), any(passed[0] for passed, _ in clear)))
        rights.append([right for _, right in equal])
    shares = np.array(rights).mean(0)  # [looks, candidates]
    coverage = [
        f"{each.mean():.1%} ({each.min():.1%} to {each.max():.1%})" for each in (shares[:, 0], shares[:, 1:].mean(1))
    ]
    return [*(f"{share:.2%}" for share in np.mean(false, 0)), *coverage]


def main() -> None:
    """Print one line for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=150, help="simulate so many nights until a decision")
    parser.add_argument("--looked-at", type=int, default=4000, help="simulate so many nights that may end at any look")
    parser.add_argument("--rounds", type=int, default=PROFILES["standard"].rounds, help="rounds in a launch")
    arguments = parser.parse_args()
    head = ("noise", "tau", "sigma", "2×", "1.2×", "1.2× to 2×", "false, all", "one")
    print(f"| {' | '.join((*head, '95% interval, first', 'others', 'at the end'))} |")
    print(f"|{'---|' * 11}", flush=True)
    for seed, conditions in enumerate(lines()):
        generator = np.random.default_rng(seed)
        cells = [str(conditions), f"{conditions.tau:.0%}", f"{conditions.sigma:.0%}"]
        for ratios in RATIOS:
            cell, right = decided(generator, conditions, ratios, arguments.nights, arguments.rounds)
            cells.append(cell)
        cells += looked_at(generator, conditions, arguments.looked_at, arguments.rounds)
        print(f"| {' | '.join(cells)} | {np.mean(right):.1%} |", flush=True)
    print_floats(arguments.looked_at // 4, arguments.rounds)


def print_floats(nights: int, rounds: int) -> None:
    """Print the table about float candidates."""
    shown = [f"{column} {launches}" for column in ("int8", "over") for launches in (3, 5, 10)]
    print(f"\n| noise | tau | sigma | floats | false | {' | '.join(shown)} |\n|{'---|' * 11}", flush=True)
    for seed, (conditions, kind) in enumerate(product(lines(), SPEEDS)):
        generator = np.random.default_rng(1000 + seed)
        rows = [compared(generator, conditions, SPEEDS[kind], rounds) for _ in range(nights)]
        cells = [str(conditions), f"{conditions.tau:.0%}", f"{conditions.sigma:.0%}", kind]
        cells += [f"{np.mean([row['false'] for row in rows]):.2%}"]
        cells += [f"{np.mean([row[name] for row in rows]):.1%}" for name in shown]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
