"""How many planted mistakes do the tests miss, in the modules where a mistake costs most?

    python -m benchmarks.mutants [--each 30] [--seed 0] [--processes 2] [MODULE ...]

Draws mutations from Cosmic Ray's operators (pip install cosmic-ray), applies one at a time to a copy of the project,
and runs the module's own tests on it. Leaves out mutations that cannot change a result (`benchmarks.mutants.meaning`)
and sources that are not valid Python. Prints the survivors, then for each module how many mutants survived. If the
tests run ten times as long, the mutant is found.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from benchmarks.mutants.meaning import meaning_of

ROOT = Path(__file__).parents[2]
QUICK = "not server and not browser and not long"
STORE = ("test_bundles.py", "test_pointer.py", "test_switches.py", "test_signing.py")
GATE = ("tests/tasks/test_gate.py", "tests/tasks/workload/test_gate.py")
TESTS = {
    "tasks/gate.py": GATE,
    "tasks/workload/gate.py": GATE,
    "tasks/benchmark/statistics.py": ("tests/tasks/benchmark/test_statistics.py",),
    "tasks/paired.py": ("tests/tasks/test_paired.py", "tests/tasks/test_evaluate.py"),
    "storage/results/writer.py": ("tests/storage/results/test_writer.py", "tests/storage/results/test_catalog.py"),
    "storage/locks.py": ("tests/storage/test_locks.py",),
    "storage/bundles.py": tuple(f"tests/storage/{name}" for name in STORE),
    "storage/pointer.py": tuple(f"tests/storage/{name}" for name in STORE),
    "storage/check.py": ("tests/storage/test_check.py", "tests/storage/test_recovery.py"),
}


@dataclass(frozen=True)
class Mutant:
    """A module with one planted mistake."""

    module: str
    operator: str
    source: str

    def difference(self) -> str:
        """Return the changed lines as a unified diff without its head."""
        before = (ROOT / self.module).read_text(encoding="utf-8").splitlines()
        lines = list(difflib.unified_diff(before, self.source.splitlines(), lineterm="", n=0))
        return "\n".join(lines[2:])


def mutants_of(module: str, seed: int) -> Iterator[Mutant]:
    """Make the mutants of a module that compute something else, in random order."""
    # Here, because nightquant does not install it, and a test imports every module that the documentation names.
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = (ROOT / module).read_text(encoding="utf-8")
    meaning, nodes = meaning_of(source), list(ast_nodes(get_ast(source)))
    # Operators with arguments are made for one project's own names. Identity of strings and small numbers is equality.
    operators = {
        name: get_operator(name)()
        for name in operator_names()
        if not get_operator(name).arguments() and not name.endswith(("_Is", "_IsNot"))
    }
    places = [
        (name, occurrence)
        for name, operator in operators.items()
        for occurrence in range(sum(len(list(operator.mutation_positions(node))) for node in nodes))
    ]
    random.Random(seed).shuffle(places)
    for name, occurrence in places:
        try:
            changed = mutate_code(source, operators[name], occurrence)
        except AttributeError:  # Cosmic Ray cannot replace an exception whose name has a dot
            continue
        if changed is not None and meaning_of(changed) not in (meaning, ""):
            yield Mutant(module, name.removeprefix("core/"), changed)


class Copies:
    """Copies of the project, one for each worker, in which mutants are tested."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._limits_s: dict[str, float] = {}
        for number in range(count):
            copy = folder / str(number)
            for name in ("flows", "tasks", "storage", "tests", "benchmarks", "docs"):
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", copy)
            self._free.put(copy)

    def survives(self, mutant: Mutant) -> bool:
        """Whether the tests of the module pass with the mistake in it."""
        copy = self._free.get()
        path = copy / mutant.module
        original = path.read_text(encoding="utf-8")
        try:
            path.write_text(mutant.source, encoding="utf-8")
            return self._pass(copy, mutant.module, self._limits_s[mutant.module])
        finally:
            path.write_text(original, encoding="utf-8")
            self._free.put(copy)

    def measure(self, module: str) -> None:
        """Run the module's tests without a mistake; ten times as long is the limit of its mutants."""
        copy, began = self._free.get(), time.monotonic()
        try:
            if not self._pass(copy, module, 600.0):
                raise RuntimeError(f"The tests of {module} fail without a mutation.")
        finally:
            self._free.put(copy)
        self._limits_s[module] = 10 * (time.monotonic() - began)

    def _pass(self, copy: Path, module: str, limit_s: float) -> bool:
        tests = [name for name in TESTS[module] if (copy / name).is_file()]
        options = ("-x", "-q", "-m", QUICK, "-p", "no:randomly", "-p", "no:cacheprovider")
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=copy, env=environment, capture_output=True, timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def main() -> None:
    """Print the survivors, and a line for each module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"default: {' '.join(TESTS)}")
    parser.add_argument("--each", type=int, default=30, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="decides which mutants are drawn")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="test this many mutants at a time")
    arguments = parser.parse_args()
    lines, survived_in_all, drawn_in_all = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        copies = Copies(Path(folder), arguments.processes)
        for module in arguments.modules or TESTS:
            drawn = list(islice(mutants_of(module, arguments.seed), arguments.each))
            copies.measure(module)
            with ThreadPoolExecutor(arguments.processes) as pool:
                survivors = [
                    mutant for mutant, alive in zip(drawn, pool.map(copies.survives, drawn), strict=True) if alive
                ]
            for mutant in survivors:
                print(f"{module} {mutant.operator}\n{mutant.difference()}", flush=True)
            lines.append(f"| {module} | {len(drawn)} | {len(survivors)} |")
            survived_in_all, drawn_in_all = survived_in_all + len(survivors), drawn_in_all + len(drawn)
    print("| module | mutants drawn | survived |\n|---|---|---|")
    print(*lines, sep="\n")
    print(f"| all | {drawn_in_all} | {survived_in_all} ({survived_in_all / drawn_in_all:.1%}) |")


if __name__ == "__main__":
    main()
