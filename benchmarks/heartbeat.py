"""How long a night is silent where no terminal is: a long training, and the time between two lines of its output.

    python -m benchmarks.heartbeat --minutes 10

Trains the built-in word model for more epochs than fit, and ends the night after so many minutes. A busy machine is the
harder case.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

from flows.request import NightlyRequest
from tasks.machine import this_machine

_WORKLOAD = Path(__file__).parents[1] / "flows" / "workloads" / "word-lm.toml"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    (workload,) = NightlyRequest(workloads=["word-lm"]).load_workloads()
    text = _WORKLOAD.read_text(encoding="utf-8").replace(f"epochs = {workload.checkpoint.epochs}", "epochs = 1000")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "word-lm.toml"
        file.write_text(text, encoding="utf-8")
        command = [
            sys.executable,
            "-P",
            "-m",
            "flows",
            "nightly",
            "--workload",
            str(file),
            "--store",
            f"{folder}/store",
        ]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as night:
            threading.Timer(60 * minutes, night.terminate).start()
            lines = [(time.monotonic() - began, line) for line in night.stdout or ()]
    gaps = sorted((later - earlier, line.strip()) for (earlier, _), (later, line) in pairwise([(0.0, ""), *lines]))
    print(f"{this_machine().cpu}, load {os.getloadavg()[0]:.1f}: {len(lines)} lines in {lines[-1][0]:.0f} s.")
    print(
        f"Longest silence: {gaps[-1][0]:.1f} s, before “{gaps[-1][1]}”; the median is {gaps[len(gaps) // 2][0]:.1f} s."
    )


if __name__ == "__main__":
    main()
