"""Kill nights at random moments of every stage.

    python -m benchmarks.kills [--times 50] [--seed 20261121] [--deployed]

Each time SIGKILL goes to the flow's process alone, to one of its stage workers, to its server, or to every process at
once; with ``--deployed``, where a Prefect server on PostgreSQL and a worker run the nights, also to that worker. Prints
one line per kill, and ends with an error at the first thing that is wrong: a process that is left 10 s later, a store
that is not whole, an artifact that has changed, a last night that does not complete, or a row that is there twice.
Nights of the command also hand two workloads over, and must have raised their alarm before. They must have recorded a
workload's measurements before the next one's benchmark began. In the end each switch has its row, each such row its
switch, and each run its end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.kills.command import kill_commands
from benchmarks.kills.deployed import kill_deployed


def main() -> None:
    """Print one line per kill."""
    parser = argparse.ArgumentParser(description="What do killed nights leave behind?")
    parser.add_argument("--times", type=int, default=50, help="nights to kill")
    parser.add_argument("--seed", type=int, default=20261121, help="of the moments")
    parser.add_argument("--deployed", action="store_true", help="nights of a deployment, on PostgreSQL")
    arguments = parser.parse_args()
    kill_nights = kill_deployed if arguments.deployed else kill_commands
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        for kill in kill_nights(Path(folder), arguments.times, arguments.seed):
            print(f"{kill.target:14} {kill.after_s:5.1f} s after {kill.moment}", flush=True)
    print(f"{arguments.times} kills in {time.monotonic() - began:.0f} s: nothing left, store whole, no row twice.")


if __name__ == "__main__":
    main()
