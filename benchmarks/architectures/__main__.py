"""Which architectures become int8, by which method and in which runtime; or what each one says instead?

    python -m benchmarks.architectures [--only NAME ...] [--memory-gb 8]

Makes each architecture small and with random weights, writes the workload file that a user would write, and builds each
candidate in a process of its own for the architecture, with limits of time and memory. timm is not installed with
nightquant; without it, its architectures are left out. So is the executorch runtime without its extra.

A cell shows the outcome of a candidate: the largest difference of its outputs from the float model's outputs, as a
fraction of their range; "refused", with a message below the table; "crashed" for an unforeseen error; "too slow" or
"too large" for a candidate that exceeded a limit; or "-" if the method does not quantize any module of the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.architectures.catalog import Architecture, architectures

ROOT = Path(__file__).parents[2]
RUNTIMES = ("torchscript", "onnxruntime", "openvino")
# ExecuTorch has its own requirements, so it is tried only where it is installed.
EXECUTORCH = ("executorch",) if find_spec("executorch") else ()
METHODS = {"dynamic": RUNTIMES, "dynamic-per-row": EXECUTORCH, "static": (*RUNTIMES, *EXECUTORCH)}
SECONDS = 120  # for each candidate


@dataclass(frozen=True)
class Outcome:
    """Outcome of one candidate: "works", "refused", "crashed", "too slow", "too large" or "-", with a message."""

    architecture: str
    method: str
    runtime: str
    became: str
    message: str = ""
    distance: float | None = None

    def cell(self) -> str:
        """A cell of the table."""
        return self.became if self.distance is None else f"{self.distance:.1%}"


def write_user_files(architecture: Architecture, folder: Path) -> Path:
    """Write a model with its data, as a user would, and the workload file; return the file's path."""
    inputs = ", ".join(f"{name!r}: {expression}" for name, expression in architecture.inputs)
    code = f"""
    def model():
        torch.manual_seed(0)
        return {architecture.model}

    def data():
        g = torch.Generator().manual_seed(0)
        items = [({{{inputs}}}, index % 2) for index in range(16)]
        return {{"calibration": items, "test": items}}  # so that no test row lies outside the calibrated ranges

    def score(outputs, target):
        return float(outputs.double().mean())
    """
    head = f"import torch\nfrom torch import nn\n{architecture.imports}\n"
    (folder / "sweep.py").write_text(head + textwrap.dedent(code), encoding="utf-8")
    recipes = "".join(
        f'[[recipe]]\nname = "{method}"\nmethod = "{method}"\nruntimes = {json.dumps(runtimes)}\n'
        for method, runtimes in METHODS.items()
        if runtimes
    )
    document = f"""
    schema_version = 1
    name = "sweep"
    description = "{architecture.family}: {architecture.name}"
    domain = "custom"
    [data]
    kind = "factory"
    factory = "sweep:data"
    [model]
    kind = "factory"
    factory = "sweep:model"
    [checkpoint]
    kind = "seeded"
    [evaluate]
    metric = "sweep:score"
    higher_is_better = true
    [[recipe]]
    name = "float"
    method = "none"
    """
    path = folder / "sweep.toml"
    path.write_text(textwrap.dedent(document) + recipes, encoding="utf-8")
    return path


def run_one(memory_bytes: int, architecture: Architecture) -> tuple[Architecture, list[Outcome]]:
    """Try an architecture in a process of its own; what that did not come to is too slow or crashed."""
    asked = [(method, runtime) for method, runtimes in METHODS.items() for runtime in runtimes]
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        path = write_user_files(architecture, Path(folder))
        words = [sys.executable, "-m", "benchmarks.architectures.candidates", str(path), str(memory_bytes)]
        try:
            command, limit_s = [*words, *map("/".join, asked)], SECONDS * len(asked)
            done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=limit_s, check=False)
            output, became, errors = done.stdout, "crashed", done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            output, became, errors = error.stdout or b"", "too slow", ""
    message = "".join(errors.strip().splitlines()[-1:])
    outcomes = [Outcome(architecture.name, **json.loads(line)) for line in output.splitlines() if line.startswith(b"{")]
    outcomes += [
        Outcome(architecture.name, *each, "-" if number else became, message)
        for number, each in enumerate(asked[len(outcomes) :])
    ]
    return architecture, outcomes


def print_table(found: Iterable[tuple[Architecture, list[Outcome]]]) -> None:
    """Print the table, then each refusal and crash once, then the counts."""
    messages: dict[tuple[str, str], list[str]] = {}
    counts: Counter[str] = Counter()
    two = one = total = 0
    header: list[str] = []
    for architecture, outcomes in found:
        if not header:
            header = [f"{outcome.method}, {outcome.runtime}" for outcome in outcomes]
            print("| architecture | " + " | ".join(header) + " |\n|" + "---|" * (len(header) + 1))
        cells = [outcome.cell() for outcome in outcomes]
        print(f"| {architecture.family}: {architecture.name} | " + " | ".join(cells) + " |", flush=True)
        works = {outcome.runtime for outcome in outcomes if outcome.became == "works"}
        total, two, one = total + 1, two + (len(works) >= 2), one + (len(works) >= 1)
        for outcome in outcomes:
            counts[outcome.became] += 1
            if outcome.became not in ("works", "-"):
                place = f"{architecture.name} ({outcome.method}, {outcome.runtime})"
                messages.setdefault((outcome.became, outcome.message), []).append(place)
    print()
    for (became, message), places in messages.items():
        print(f"- {became}: {', '.join(places)}: {message}")
    print(f"\n{total} architectures: int8 in at least two runtimes for {two}, in at least one for {one}.")
    print(", ".join(f"{became}: {count}" for became, count in counts.most_common()))


def main() -> None:
    """Try the architectures, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="try only the architectures with these names")
    parser.add_argument("--memory-gb", type=float, default=8.0, help="limit a process to this much memory")
    options = parser.parse_args()
    names = ("torch", "onnxruntime", "openvino", "nncf", "executorch", "torchvision", "transformers", "timm")
    installed = [name for name in names if find_spec(name)]
    chosen = [one for one in architectures() if one.family in (*installed, "own")]
    chosen = [one for one in chosen if not options.only or one.name in options.only]
    print(", ".join(f"{name} {version(name)}" for name in installed) + "\n")
    with ThreadPoolExecutor(2) as pool:
        print_table(pool.map(partial(run_one, int(options.memory_gb * 2**30)), chosen))


if __name__ == "__main__":
    main()
