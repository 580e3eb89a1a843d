"""Where do the tests' seconds go? Time by file and the slowest tests, from what pytest wrote of a run.

    make unit REPORT=/tmp/unit.xml
    python -m benchmarks.durations /tmp/unit.xml [--files 20] [--tests 20]

A test's seconds are those of its worker, its fixtures included; a fixture that several tests share counts for the first
of them. "computing" is the processor time of the worker and of its processes that have ended, as a share of the
seconds: the rest is waiting, or other tests' turn. It may exceed 100%, for processes run beside each other.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

CPU = "cpu_s"


@dataclass(frozen=True)
class Timed:
    """A test, or several, with wall and processor time in seconds."""

    name: str
    seconds: float
    cpu_s: float
    tests: int = 1

    def line(self) -> str:
        """A line of the table."""
        share = self.cpu_s / self.seconds if self.seconds else 0.0
        return f"{self.seconds:8.1f} s {share:5.0%} computing {self.tests:5d}  {self.name}"


def read(report: Path) -> list[Timed]:
    """Read the tests of a JUnit report that pytest wrote."""
    return [
        Timed(
            f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}",
            float(case.get("time", 0)),
            sum(float(item.get("value", 0)) for item in case.iter("property") if item.get("name") == CPU),
        )
        for case in ET.parse(report).iter("testcase")
    ]


def by_file(tests: Iterable[Timed]) -> list[Timed]:
    """Add up the tests of each file."""

    def file(test: Timed) -> str:
        return test.name.partition("::")[0]

    groups = ((name, list(group)) for name, group in groupby(sorted(tests, key=file), key=file))
    return [total(group, name) for name, group in groups]


def total(tests: Iterable[Timed], name: str) -> Timed:
    """Add up tests under a name."""
    tests = list(tests)
    seconds, cpu_s = sum(test.seconds for test in tests), sum(test.cpu_s for test in tests)
    return Timed(name, seconds, cpu_s, len(tests))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--tests", type=int, default=20)
    arguments = parser.parse_args()
    tests = read(arguments.report)
    print(total(tests, "all").line())
    for rows, count in ((by_file(tests), arguments.files), (tests, arguments.tests)):
        print()
        for row in sorted(rows, key=lambda row: -row.seconds)[:count]:
            print(row.line())


if __name__ == "__main__":
    main()
