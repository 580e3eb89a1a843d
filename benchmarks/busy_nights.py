"""Do quick nights hand over what is faster, and nothing that is not, on a machine that is busy?

    python -m benchmarks.busy_nights

Keeps one processor busy all the while, and runs nights of ``resnet18`` and ``word-lm``, each in a store that holds what
was prepared and trained but no result and no bundle; then nights of a workload whose candidates are the baseline under
other names. Each night runs as the command line runs it, and each bundle is verified by it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.results.query import run_query
from tasks.machine import this_machine

BUILT_IN = ("resnet18", "word-lm")
EQUALS = ("same-a", "same-b", "same-c")
EQUAL_WORKLOAD = """
schema_version = 1
name = "equal"
description = "candidates that are the baseline under other names"
domain = "sequence"
[data]
kind = "random-sequence"
[model]
kind = "lstm"
dimension = 256
[checkpoint]
kind = "seeded"
[benchmark]
baseline = "float/torchscript"
[gate]
min_speedup = 1.05
""" + "".join(
    f'[[recipe]]\nname = "{name}"\nmethod = "none"\nruntimes = ["torchscript"]\n' for name in ("float", *EQUALS)
)


@contextmanager
def one_processor_busy() -> Iterator[None]:
    """Run an endless loop beside the block."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def nightquant(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run([sys.executable, "-m", "flows", *arguments], capture_output=True, text=True, check=False)


def fresh_store(prepared: Path, store: Path) -> None:
    """Make a store that shares the artifacts of another one, and has nothing else."""
    if prepared != store:
        shutil.copytree(prepared / "artifacts", store / "artifacts", copy_function=os.link)


def show_night(number: int, store: Path, workloads: tuple[str, ...]) -> list[bool]:
    """Run one night, print what came of it, and say for each workload whether a bundle was promoted and is good."""
    began = time.perf_counter()
    asked = [part for name in workloads for part in ("--workload", name)]
    ended = nightquant("nightly", *asked, "--profile", "quick", "--store", str(store))
    wall_s = time.perf_counter() - began
    if ended.returncode:
        sys.exit(f"The night ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    good = []
    for workload in workloads:
        name = Path(workload).stem
        rows = run_query(
            str(store),
            "select recipe, runtime, speedup, speedup_bound_low, speedup_bound_high, launches, aa_low, aa_high,"
            " decision, bundle_version from measurements join promotions using (run_id, workload, recipe, runtime)"
            f" where workload = '{name}' and setting = 'primary' order by decision = 'promote' desc, speedup desc",
        ).to_pylist()
        best = rows[0]
        bundle = store / "handoff" / name / str(best["bundle_version"])
        good.append(best["decision"] == "promote" and nightquant("handoff", "verify", str(bundle)).returncode == 0)
        resolution = 100 * max(best["aa_high"] - 1, 1 - best["aa_low"])
        print(
            f"night {number:2} {name:9} {best['recipe']}/{best['runtime']}: {best['speedup']:.2f}x "
            f"[{best['speedup_bound_low']:.2f}, {best['speedup_bound_high']:.2f}] after {best['launches']} launches, "
            f"resolution ±{resolution:.0f}%: {best['decision']}{', verified' * good[-1]}; night {wall_s:.0f} s",
            flush=True,
        )
    return good


def main() -> None:
    """Print a line for each night and workload, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=10, help="nights of the built-in workloads")
    parser.add_argument("--equal", type=int, default=20, help="nights of candidates that equal the baseline")
    arguments = parser.parse_args()
    print(this_machine().cpu, this_machine().libraries, flush=True)
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder, one_processor_busy():
        root = Path(folder)
        equal = root / "equal.toml"
        equal.write_text(EQUAL_WORKLOAD, encoding="utf-8")
        for workloads, nights in ((BUILT_IN, arguments.nights), ((str(equal),), arguments.equal)):
            found = []
            for number in range(1, nights + 1):
                store = root / f"{Path(workloads[0]).stem}-{number}"
                fresh_store(root / f"{Path(workloads[0]).stem}-1", store)
                found.append(show_night(number, store, workloads))
            for name, column in zip(workloads, zip(*found, strict=True), strict=False):
                print(f"{Path(name).stem}: a verified bundle on {sum(column)} of {nights} nights", flush=True)


if __name__ == "__main__":
    main()
