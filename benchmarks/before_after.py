"""Do two versions of nightquant print the same numbers? Compares the nights that they recorded.

    python -m benchmarks.before_after STORE_BEFORE STORE_AFTER

Each store holds a first night of the built-in workloads, run by one of the versions on the same machine. Prints the
quality, size and coverage of each candidate whose numbers differ, and how many agree: quality to the last digit, size
to the byte. Timings are measured anew each night and are not compared. Then this version's gate judges the rows of the
first store again; its decisions are compared with the recorded ones.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from storage.results import Row
from storage.results.tables import MEASUREMENTS, PROMOTIONS
from tasks.gate import judge
from tasks.workload import find_workloads

BUILT_IN = Path(__file__).parents[1] / "flows" / "workloads"
COMPARED = ("status", "quality_metric", "quality", "size_bytes", "coverage", "modules_quantized", "modules_total")
Candidate = tuple[str, str]


def rows_of(store: Path, table: str) -> list[Row]:
    """Read a table's files as they are: the other version may have had other columns."""
    files = sorted((store / "results" / table).rglob("*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist(maps_as_pydicts="strict")]


def primary(store: Path) -> dict[Candidate, Row]:
    """Map workload and candidate to the row of its primary setting."""
    rows = rows_of(store, MEASUREMENTS.name)
    return {
        (str(row["workload"]), f"{row['recipe']}/{row['runtime']}"): row for row in rows if row["setting"] == "primary"
    }


def print_numbers(before: dict[Candidate, Row], after: dict[Candidate, Row]) -> None:
    """Print what differs between two nights, then what agrees, by workload."""
    agree: Counter[str] = Counter()
    for candidate in sorted(before.keys() | after.keys()):
        old, new = before.get(candidate), after.get(candidate)
        if old is None or new is None:
            print(f"{' '.join(candidate)}: only {'after' if old is None else 'before'}")
            continue
        changed = [name for name in COMPARED if old.get(name) != new.get(name)]
        for name in changed:
            print(f"{' '.join(candidate)}: {name} {old.get(name)} before, {new.get(name)} after")
        agree[candidate[0]] += not changed
    for workload, count in agree.items():
        total = sum(candidate[0] == workload for candidate in before)
        print(f"{workload}: {count} of {total} candidates agree in {', '.join(COMPARED)}")


def print_decisions(store: Path) -> None:
    """Judge a first night's rows again and print what this version decides otherwise."""
    rows = rows_of(store, MEASUREMENTS.name)
    recorded = {
        (str(row["workload"]), f"{row['recipe']}/{row['runtime']}"): row["decision"]
        for row in rows_of(store, PROMOTIONS.name)
    }
    decided = {
        (workload.name, decision.candidate): decision.decision
        for workload in find_workloads(sorted({str(row["workload"]) for row in rows}), BUILT_IN)
        for decision in judge(workload, rows, None).decisions
    }
    for candidate in sorted(recorded.keys() | decided.keys()):
        if recorded.get(candidate) != decided.get(candidate):
            print(f"{' '.join(candidate)}: {recorded.get(candidate)} before, {decided.get(candidate)} after")
    same = sum(recorded.get(candidate) == decision for candidate, decision in decided.items())
    print(f"decisions on the rows of before: {same} of {len(recorded)} the same")


def main() -> None:
    """Print the comparison of two stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="read the store of the earlier version")
    parser.add_argument("after", type=Path, help="read the store of this version")
    options = parser.parse_args()
    print_numbers(primary(options.before), primary(options.after))
    print_decisions(options.before)


if __name__ == "__main__":
    main()
