"""How long a night takes to stop: SIGTERM in each stage, until the command and all that it started are gone.

    python -m benchmarks.stopping [--times 3]

Prints seconds, the median and the longest of several nights over ``lstm-demo``, each on an empty store.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

STAGES = ("prepare data set", "obtain checkpoint", "build", "evaluate", "benchmark")


def stop_in(stage: str, folder: Path) -> float:
    """Begin a night, stop it once `stage` has begun; give the seconds from the signal to the end of its last process.

    Raises
    ------
    RuntimeError
        The night did not get as far as that, or did not end as a stopped one does.
    """
    command = ["nightly", "--workload", "lstm-demo", "--profile", "quick", "--store", str(folder / "store")]
    with subprocess.Popen(
        [sys.executable, "-m", "flows", *command],
        env=os.environ | {"PREFECT_HOME": str(folder / "prefect")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as night:
        assert night.stdout is not None
        said = []
        for line in night.stdout:
            said.append(line)
            if f"{stage} …" in line:
                break
        else:
            raise RuntimeError(f"It ended before {stage}:\n{''.join(said)}")
        started = psutil.Process(night.pid).children(recursive=True)
        began = time.perf_counter()
        night.send_signal(signal.SIGTERM)
        said += night.stdout.readlines()
        code = night.wait()
        psutil.wait_procs(started)
        if code != 128 + signal.SIGTERM:
            raise RuntimeError(f"It ended with {code}:\n{''.join(said)}")
        return time.perf_counter() - began


def main() -> None:
    """Print one line per stage."""
    parser = argparse.ArgumentParser(description="How long does a night take to stop?")
    parser.add_argument("--times", type=int, default=3, help="nights per stage")
    times = parser.parse_args().times
    print(f"{'stopped in':20} {'median':>8} {'longest':>8}")
    for stage in STAGES:
        with tempfile.TemporaryDirectory(prefix="nightquant-") as name:
            found = []
            for number in range(times):
                folder = Path(name) / str(number)
                folder.mkdir()
                found.append(stop_in(stage, folder))
        print(f"{stage:20} {statistics.median(found):6.1f} s {max(found):6.1f} s", flush=True)


if __name__ == "__main__":
    main()
