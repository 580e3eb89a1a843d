"""Do the alarms find what is planted, leave alone what is not, and name the cause? The shipped code, night by night.

Histories are of a store that is used: some nights are missing, some inconclusive (their intervals, and what they
measure, are several times as wide), some doubled by a later run that is inconclusive. A night's noise is the standard
deviation of the measured ratio's logarithm on a good night: half of its variance within the night, which the interval
shows as well as five launches can, half from night to night. Usage: ``python -m benchmarks.regressions``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.results import Row
from storage.results.catalog import refresh
from storage.results.query import open_catalog
from storage.results.regressions import NightComparison, compare_night
from storage.results.writer import ResultsStore

FIRST = dt.date(2025, 1, 1)
HISTORY = 30  # nights before what is planted
LAUNCHES = 5
SHARE = 0.05  # of the nights: missing, inconclusive, doubled; that much each
INCONCLUSIVE = (0.05, 0.2)  # standard deviations within such a night, drawn evenly


@dataclass(frozen=True)
class Candidate:
    """A simulated candidate: the logarithm of its true ratio by night, and its other columns by night."""

    name: str
    ratio: Callable[[int], float]
    columns: Callable[[int], Row]


def rows_of(generator: np.random.Generator, noise: float, candidate: Candidate, index: int) -> Iterator[Row]:
    """One night's measurements of a candidate: in one run, or in two where the night is doubled."""
    kind = generator.random()
    wobble = generator.normal(0, noise / math.sqrt(2))
    for run in range(2 if 2 * SHARE <= kind < 3 * SHARE else 1):
        noisy = run == 1 or SHARE <= kind < 2 * SHARE
        within = generator.uniform(*INCONCLUSIVE) if noisy else noise / math.sqrt(2)
        # What Student's t makes of so many launches: its width has its own scatter.
        width = 2.776 * within * math.sqrt(generator.chisquare(LAUNCHES - 1) / (LAUNCHES - 1))
        value = candidate.ratio(index) + wobble + generator.normal(0, within)
        yield row(index, run, candidate) | {
            "speedup": math.exp(value),
            "speedup_low": math.exp(value - width),
            "speedup_high": math.exp(value + width),
            "verdict": "inconclusive" if noisy else "valid",
        }


def row(index: int, run: int, candidate: Candidate) -> dict[str, object]:
    """What all measurements have."""
    night = FIRST + dt.timedelta(days=index)
    return {
        "run_id": f"run-{index:03}-{run}",
        "night": night,
        "workload": candidate.name,
        "recipe": "dynamic",
        "runtime": "eager",
        "setting": "primary",
        "threads": 1,
        "batch_size": 1,
        "status": "ok",
        "measured_at": dt.datetime.combine(night, dt.time(3 + run), dt.UTC),
        "profile": "standard",
        "baseline": "float/eager",
        "is_baseline": False,
        "machine": "m" * 64,
        "environment": environment("6.1", "2.14.0"),
    } | dict(candidate.columns(index))


def environment(kernel: str, torch: str) -> str:
    """The column of that name."""
    return json.dumps({"kernel": f"Linux {kernel}", "torch": torch})


def nights_of(
    root: Path, generator: np.random.Generator, noise: float, candidates: list[Candidate], nights: int, after: int
) -> Iterator[tuple[int, NightComparison]]:
    """Write all nights, then compare those from `after` on as the flow does; yield what each found."""
    store = ResultsStore(root)
    for index in range(nights):
        runs: dict[str, list[Row]] = {}
        for candidate in candidates:
            if generator.random() >= SHARE:  # else the night is missing
                for measured in rows_of(generator, noise, candidate, index):
                    runs.setdefault(str(measured["run_id"]), []).append(measured)
        for run_id, rows in runs.items():
            store.append("measurements", rows, run_id, dt.datetime(2025, 1, 1, tzinfo=dt.UTC))
    refresh(store.root)
    with open_catalog(store.root) as connection:
        for index in range(after, nights):
            yield index, compare_night(connection, FIRST + dt.timedelta(days=index))


def nothing(index: int) -> Row:
    """No further columns."""
    return {}


def false_alarms(noise: float, candidates: int, nights: int, history: int, seed: int) -> tuple[float, float]:
    """Nights with an alarm, and alarms, in 1,000 candidate-nights without a change."""
    generator = np.random.default_rng(seed)
    quiet = [Candidate(f"quiet-{index}", lambda night: math.log(2), nothing) for index in range(candidates)]
    alarmed: set[tuple[str, int]] = set()
    with tempfile.TemporaryDirectory() as folder:
        for index, compared in nights_of(Path(folder), generator, noise, quiet, history + nights, history):
            alarmed |= {(found.workload, index) for found in compared.findings if found.is_bad}
    begun = sum((name, index - 1) not in alarmed for name, index in alarmed)
    return 1000 * len(alarmed) / (candidates * nights), 1000 * begun / (candidates * nights)


def found_by(
    noise: float, change: Callable[[int], float], by: int, candidates: int, history: int, seed: int
) -> list[float]:
    """Share of the candidates whose planted change was told by the 1st, 2nd, … night that measured them after it."""
    generator = np.random.default_rng(seed)

    def ratio(index: int) -> float:
        return math.log(2) + (change(index - history + 1) if index >= history else 0.0)

    planted = [Candidate(f"planted-{index}", ratio, nothing) for index in range(candidates)]
    told: dict[str, int] = {}
    measured: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        # Some nights more, for those that are missing.
        for _, compared in nights_of(Path(folder), generator, noise, planted, history + by + 3, history):
            measured.update(compared.nights.keys())
            for found in compared.findings:
                if found.kind == "slower":
                    told.setdefault(found.workload, measured[found.workload])
    return [sum(night <= last for night in told.values()) / candidates for last in range(1, by + 1)]


# What is planted: columns afterwards. A change of data makes a new checkpoint too.
CAUSES: dict[str, dict[str, str]] = {
    "environment": {"environment": environment("6.1", "2.15.0")},
    "data": {"data_digest": "data-2", "checkpoint_digest": "checkpoint-2"},
    "recipe": {"recipe_digest": "recipe-2"},
    "checkpoint": {"checkpoint_digest": "checkpoint-2"},
}
INPUTS: dict[str, object] = {"data_digest": "data-1", "checkpoint_digest": "checkpoint-1", "recipe_digest": "recipe-1"}


def attributed(cause: str, noise: float, size: float, candidates: int, seed: int) -> list[float]:
    """Share of the findings that name this cause and no other.

    In speed and in quality with nothing else changed; and in speed with a change of something else without effect,
    three to ten nights before or after.
    """
    generator = np.random.default_rng(seed)
    told: dict[tuple[str, str, str], bool] = {}
    made = []
    for name in range(candidates):
        other = str(generator.choice([each for each in CAUSES if each != cause]))
        apart = HISTORY + int(generator.integers(3, 11)) * int(generator.choice([-1, 1]))
        made += [planted(f"alone-{name}", cause, size), planted(f"apart-{name}", cause, size, other, apart)]
    with tempfile.TemporaryDirectory() as folder:
        for _, compared in nights_of(Path(folder), generator, noise, made, HISTORY + 6, HISTORY + 1):
            for found in compared.findings:
                if found.is_bad:
                    case = found.workload.partition("-")[0]
                    told.setdefault((case, found.metric, found.workload), found.cause == cause)
    cases = [("alone", "speedup"), ("alone", "quality"), ("apart", "speedup")]
    return [float(np.mean([right for (*case, _), right in told.items() if tuple(case) == each])) for each in cases]


def planted(name: str, cause: str, size: float, other: str = "", at: int = 0) -> Candidate:
    """A candidate that becomes slower and worse with a cause; of something else a change on the night `at` as well."""

    def columns(index: int) -> Row:
        columns = INPUTS | {"quality_metric": "loss", "quality": 4.0 if index < HISTORY else 4.2}
        if other and index >= at:
            columns |= CAUSES[other]
        if index >= HISTORY:
            # A second change of a column is to a third value.
            columns |= {
                key: f"{value} " if columns.get(key) == value else value for key, value in CAUSES[cause].items()
            }
        return columns | {"higher_is_better": False}

    def ratio(index: int) -> float:
        return math.log(2) + (math.log1p(size) if index >= HISTORY else 0.0)

    return Candidate(name, ratio, columns)


def step(size: float) -> Callable[[int], float]:
    """A change at once, in logarithms by the number of the night."""
    return lambda night: math.log1p(size)


def main() -> None:
    """Print what was found, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quiet", type=int, default=200, help="candidates without a change")
    parser.add_argument("--nights", type=int, default=40, help="nights that are looked at, each candidate on each")
    parser.add_argument("--planted", type=int, default=400, help="candidates with a change")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"False alerts in {arguments.quiet * arguments.nights:,} candidate-nights without a change:\n")
    print(
        "| noise | nights of history | candidate-nights with a false alert, per 1,000 candidate-nights "
        "| false alerts, per 1,000 candidate-nights |"
    )
    print("| ---: | ---: | ---: | ---: |")
    for noise, history in ((0.01, HISTORY), (0.025, HISTORY), (0.05, HISTORY), (0.01, 8), (0.025, 8)):
        nights, alarms = false_alarms(noise, arguments.quiet, arguments.nights, history, arguments.seed)
        print(f"| {noise:.1%} | {history} | {nights:.2f} | {alarms:.2f} |", flush=True)
    print(f"\nFraction of {arguments.planted} slower candidates reported by the nth measured night after the change:\n")
    print("| change | noise | nights of history | night 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |")
    print("| --- | ---: | ---: |" + " ---: |" * 8)
    for name, change, noise, history in (
        ("5% at once", step(-0.05), 0.01, HISTORY),
        ("10% at once", step(-0.1), 0.025, HISTORY),
        ("1% a night", lambda night: night * math.log1p(-0.01), 0.01, HISTORY),
        ("1% a night", lambda night: night * math.log1p(-0.01), 0.025, HISTORY),
        ("5% at once", step(-0.05), 0.01, 8),
        ("10% at once", step(-0.1), 0.025, 8),
    ):
        shares = found_by(noise, change, 8, arguments.planted, history, arguments.seed)
        cells = " | ".join(f"{share:.0%}" for share in shares)
        print(f"| {name} | {noise:.1%} | {history} | {cells} |", flush=True)
    print("\nFraction of findings that name only the true cause of a 10% change at 2.5% noise:\n")
    print("| cause | speed | quality | speed, with an unrelated change on another night |")
    print("| --- | ---: | ---: | ---: |")
    for cause in CAUSES:
        shares = attributed(cause, 0.025, -0.1, arguments.planted // 2, arguments.seed)
        print(f"| {cause} | {' | '.join(f'{share:.0%}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
