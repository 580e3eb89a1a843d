"""What a task run costs through Prefect: trivial tasks, one after another, on the server that the command starts.

Usage: ``python -m benchmarks.overhead [--tasks 100]``. Prints the median in milliseconds, and the CPU time that client
and server spent on each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass

import psutil

from flows.execution.server import prefect_api

LIMIT_S = 0.100
WARM_UP = 5


@dataclass(frozen=True)
class Overhead:
    """Seconds per task run: wall time (median, 95th percentile), client's and server's CPU time (mean)."""

    tasks: int
    median_s: float
    high_s: float
    client_cpu_s: float
    server_cpu_s: float


def measure(tasks: int) -> Overhead:
    """Run `tasks` trivial tasks as a night runs its own: submitted to threads, waited for one by one.

    Needs a Prefect API (see `flows.execution.server.prefect_api`) that a child of this process serves.
    """
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.task_runners import ThreadPoolTaskRunner

    @task(cache_policy=NO_CACHE, persist_result=False)
    def nothing(number: int) -> int:
        return number

    @flow(persist_result=False, task_runner=ThreadPoolTaskRunner(max_workers=4))
    def trivial() -> tuple[list[float], float]:
        times = []
        began = time.process_time()
        for number in range(WARM_UP + tasks):
            if number == WARM_UP:
                began = time.process_time()
            start = time.perf_counter()
            nothing.submit(number).result()
            times.append(time.perf_counter() - start)
        return times[WARM_UP:], time.process_time() - began

    server_before = _server_cpu_s()
    times, client_s = trivial()
    _drain()
    return Overhead(
        tasks=tasks,
        median_s=statistics.median(times),
        high_s=statistics.quantiles(times, n=20)[-1],
        client_cpu_s=client_s / tasks,
        server_cpu_s=(_server_cpu_s() - server_before) / (WARM_UP + tasks),
    )


def _server_cpu_s() -> float:
    children = psutil.Process(os.getpid()).children()
    servers = [child.cpu_times() for child in children if "flows.execution.server_process" in child.cmdline()]
    return sum(times.user + times.system for times in servers)


def _drain() -> None:
    """Wait until the server has taken in the events that the tasks left queued."""
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(timeout=30)
    busy = _server_cpu_s()
    while True:
        time.sleep(1.0)
        before, busy = busy, _server_cpu_s()
        if busy - before < 0.1:
            return


def main() -> None:
    """Print the overhead; exit 1 where the median is not under the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=100)
    arguments = parser.parse_args()
    with prefect_api(90):
        found = measure(arguments.tasks)
    print(
        f"{found.tasks} task runs: median {1000 * found.median_s:.1f} ms, 95th percentile "
        f"{1000 * found.high_s:.1f} ms; CPU per task run: client {1000 * found.client_cpu_s:.1f} ms, "
        f"server {1000 * found.server_cpu_s:.1f} ms"
    )
    if found.median_s >= LIMIT_S:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
