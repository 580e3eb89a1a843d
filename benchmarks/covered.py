"""Which lines and branches do the tests run, those of the processes that they start included?

    pip install coverage
    python -m benchmarks.covered [--processes 3] [--report FILE.xml] [-m "not long"] [tests/tasks ...]

Runs the tests as `make test-all` does, under coverage.py. Prints covered lines and branches by package. Tests that fail
are named, and their coverage counts. With --report, also writes the time of every test for `benchmarks.durations`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "storage")
# Coverage slows tests down, and a test that pytest-timeout stops by thread takes its process with it.
PYTEST = (
    "-m", "pytest", "-q", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider",
    "-o", "timeout=2400", "--timeout-method=signal", "-p", "benchmarks.covered",
)  # fmt: skip


def pytest_sessionfinish() -> None:
    """Save a worker's data before the worker exits, because xdist kills a worker that takes 10 s to exit."""
    from coverage import Coverage

    if current := Coverage.current():
        current.save()


@dataclass(frozen=True)
class Count:
    """Covered and existing lines and branches."""

    lines: int = 0
    all_lines: int = 0
    branches: int = 0
    all_branches: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.lines + other.lines,
            self.all_lines + other.all_lines,
            self.branches + other.branches,
            self.all_branches + other.all_branches,
        )

    def row(self, name: str) -> str:
        """Return a row of the table."""
        lines = f"{self.lines:,} of {self.all_lines:,} ({self.lines / max(self.all_lines, 1):.1%})"
        branches = f"{self.branches:,} of {self.all_branches:,} ({self.branches / max(self.all_branches, 1):.1%})"
        return f"| {name} | {lines} | {branches} |"


def read(report: Path) -> dict[str, Count]:
    """Read coverage's JSON report; return the counts by package."""
    counts: dict[str, Count] = defaultdict(Count)
    for name, file in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        summary = file["summary"]
        keys = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        counts[Path(name).parts[0]] += Count(*(summary[key] for key in keys))
    return counts


def main() -> None:
    """Run the tests, combine what they covered, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["tests"], help="run these tests only")
    parser.add_argument("-m", dest="marker", default="", help="run the tests with these markers only")
    parser.add_argument("--processes", type=int, default=3, help="run this many test files at a time")
    parser.add_argument("--report", default="", help="write the tests' times into this JUnit file")
    options = parser.parse_args()
    more = [f"--junitxml={options.report}"] if options.report else []
    more += ["-m", options.marker] if options.marker else []
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        configuration, report = Path(folder) / "coveragerc", Path(folder) / "report.json"
        configuration.write_text(
            f"[run]\nbranch = True\nparallel = True\nrelative_files = True\nsource = {','.join(PACKAGES)}\n"
            f"patch = subprocess\ndata_file = {folder}/data\n"
            "disable_warnings = module-not-imported,no-data-collected,couldnt-parse\n",
            encoding="utf-8",
        )
        tool = (sys.executable, "-m", "coverage")
        tests = [*PYTEST, "--numprocesses", str(options.processes), *more, *options.paths]
        subprocess.run([*tool, "run", f"--rcfile={configuration}", *tests], cwd=ROOT, check=False)
        subprocess.run([*tool, "combine", "-q", f"--rcfile={configuration}"], cwd=ROOT, check=True)
        subprocess.run(
            [*tool, "json", "-q", "--ignore-errors", f"--rcfile={configuration}", f"-o{report}"], cwd=ROOT, check=True
        )
        counts = read(report)
    print("\n| package | lines | branches |\n|---|---|---|")
    for package, count in sorted(counts.items()):
        print(count.row(package))
    print(sum(counts.values(), Count()).row("all"))


if __name__ == "__main__":
    main()
