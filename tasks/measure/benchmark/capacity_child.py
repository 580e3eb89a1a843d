"""Measure how many requests per second the host can serve; `tasks.measure.benchmark.child` runs this module.

In each sitting, all subjects are measured in turn, each with new workers, whose queue is a pipe of request numbers.
Requests are scheduled in advance, and each latency is measured from the scheduled time. If each request waited for the
previous answer, slow answers would hide the queueing (coordinated omission).
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import signal
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pkgutil import resolve_name

import numpy as np
import torch

from storage.errors import MeasurementError
from tasks.data.outputs import tensors_of
from tasks.environment.machine import affinity
from tasks.measure.benchmark.capacity import CapacityReport, CapacitySpec, Served
from tasks.measure.benchmark.child import describe_end
from tasks.measure.benchmark.launch import disagreement
from tasks.measure.benchmark.messages import Subject
from tasks.measure.benchmark.rounds import no_garbage_collection, warm_up
from tasks.measure.benchmark.statistics import Array

_OFFLINE_S, _SERVER_S, _FEWEST_REQUESTS = 0.5, 0.25, 100  # lengths of windows, and requests in a window
_SEED, _FEWEST_SITTINGS, _MOST_SITTINGS = 29592, 3, 20
_FEWEST_LATENCIES = 1_000  # at least ten latencies must exceed the 99th percentile
_SHARE = 0.99  # share of requests that must be answered within the latency bound
_PRECISION, _LOWEST = 1.02, 0.01  # relative precision, and the lowest rate as a share of the highest throughput
# The generator counts as the bottleneck if lag ÷ latency bound or busy time ÷ elapsed time exceeds these numbers.
_LATE, _BUSY = 0.1, 0.8
_WARM_UP_CALLS, _WARM_UP_S = 5, 0.2
_PATIENCE_S = 300.0  # a worker counts as hung if it does not answer within this time
_HEAD_START_S = 0.002  # time allowed for all workers to start to wait for requests
_MOST_REQUESTS = 1 << 17
_STOP = np.int64(-1).tobytes()


def run(spec_json: str, _wait: object = None) -> CapacityReport:
    """Execute a `CapacitySpec`; this process must not call torch, because its workers are forked."""
    spec = CapacitySpec.model_validate_json(spec_json)
    importlib.import_module(spec.loader.partition(":")[0])
    # Without `gc.freeze`, garbage collection in a worker would touch, and therefore copy, every object of this process.
    gc.freeze()
    results: dict[str, list[tuple[float, Window]]] = {subject.key: [] for subject in spec.subjects}
    began, baseline, refused = time.monotonic(), spec.subjects[0].key, dict[str, str]()
    for sitting in range(_MOST_SITTINGS):
        spent_s, kept = time.monotonic() - began, [each for each in spec.subjects if each.key not in refused]
        if baseline in refused or (sitting >= _FEWEST_SITTINGS and spent_s * (1 + 1 / sitting) > spec.budget_s):
            break
        # Every second sitting reverses the order, so a linear drift does not favour any subject.
        for index, subject in enumerate(kept[:: -1 if sitting % 2 else 1]):
            spent_s = time.monotonic() - began
            # Measure at least two subjects, because the baseline's capacity alone does not affect decisions.
            if sitting == 0 and index > 1 and spent_s * (1 + 1 / index) * _FEWEST_SITTINGS > spec.budget_s:
                refused[subject.key] = f"budget_s = {spec.budget_s:g} is not sufficient for {len(kept)} models"
                continue
            try:
                with running_fleet(subject, spec.processes, spec.threads, spec.loader) as fleet:
                    results[subject.key].append(_measure(fleet, spec.bound_s, sitting))
            except MeasurementError as error:
                refused[subject.key] = str(error)
    if baseline in refused:
        refused = dict.fromkeys(results, f"the baseline's capacity is unknown: {refused[baseline]}") | refused
    served = {name: _served(rows, spec.bound_s) for name, rows in results.items() if name not in refused}
    return CapacityReport(subjects=served, refused=refused)


def _measure(fleet: Fleet, bound_s: float, sitting: int) -> tuple[float, Window]:
    # Keep all workers busy by sending all requests at once.
    calls = max(1, round((_SERVER_S if bound_s else _OFFLINE_S) / fleet.call_s))
    burst = fleet.serve(np.zeros(calls * len(fleet.workers)))

    def attempt(rate: float) -> Window:
        # All subjects get the same random numbers, so the ratio of two rates is more precise than either rate.
        generator = np.random.default_rng([_SEED, sitting])
        return fleet.serve(generator.exponential(1 / rate, max(_FEWEST_REQUESTS, int(rate * _SERVER_S))))

    return highest_rate(attempt, bound_s, burst.calls_per_s) if bound_s else (burst.calls_per_s, burst)


def _served(results: Sequence[tuple[float, Window]], bound_s: float) -> Served:
    rps, windows = tuple(rate for rate, _ in results), [window for _, window in results]
    if not bound_s:
        return Served(rps=rps)
    latency_s = np.concatenate([window.latency_s for window in windows])
    percentiles = {"capacity_p50_s": float(np.median(latency_s))}
    if len(latency_s) >= _FEWEST_LATENCIES:
        percentiles["capacity_p99_s"] = float(np.quantile(latency_s, _SHARE))
    lag_s, busy = np.concatenate([window.lag_s for window in windows]), np.mean([window.busy for window in windows])
    return Served(rps=rps, percentiles=percentiles, limit=generator_limit(lag_s, float(busy), bound_s))


def highest_rate(attempt: Callable[[float], Window], bound_s: float, ceiling: float) -> tuple[float, Window]:
    """Find the highest rate at which the latency's 99th percentile is at most `bound_s`, and its window, by bisection.

    A rate fails only if two tests fail, because other programs can make a test fail. Rates above `ceiling`, the highest
    throughput, are not tried, because a short test at such a rate may pass by chance.
    """
    passed, found, failed = 0.0, None, ceiling
    while failed > max(passed * _PRECISION, ceiling * _LOWEST):
        rate = (passed + failed) / 2
        for window in (attempt(rate) for _ in range(2)):
            if float(np.quantile(window.latency_s, _SHARE)) <= bound_s:
                passed, found = rate, window
                break
        else:
            failed = rate
            if found is None and window.latency_s.min() > bound_s:
                break
    if found is None:
        raise MeasurementError(
            f"No request rate meets latency_bound_ms = {bound_s * 1e3:g}: the fastest answer took "
            f"{window.latency_s.min() * 1e3:.3g} ms.",
            hint="Raise latency_bound_ms.",
        )
    return passed, found


def generator_limit(lag_s: Array, busy: float, bound_s: float) -> str:
    """Describe how the generator limited the highest rate; return ``""`` if the generator was not the bottleneck."""
    late_s = float(np.quantile(lag_s, _SHARE))
    if late_s > _LATE * bound_s:
        return f"the generator, which sent 1% of the requests at least {late_s * 1e3:.3g} ms late"
    return f"the generator, which was busy {busy:.0%} of the time" if busy > _BUSY else ""


@dataclass(frozen=True)
class Window:
    """Timings of requests, float64 [requests], their delays in sending, and the generator's busy share of the time."""

    calls_per_s: float
    latency_s: Array
    lag_s: Array
    busy: float


@dataclass
class Fleet:
    """Running workers that call the same subject; ``call_s`` is the duration of a call during the warm-up."""

    workers: dict[ForkProcess, Connection]
    queue: int
    finished_s: Array
    call_s: float = 0.0

    def serve(self, gaps_s: Array) -> Window:
        """Send requests that are `gaps_s` seconds apart, at most `_MOST_REQUESTS`, and wait for all answers."""
        due_s = np.cumsum(gaps_s[:_MOST_REQUESTS])
        numbers, sent_s, sent = np.arange(len(due_s), dtype=np.int64), np.empty(len(due_s)), 0
        for control in self.workers.values():
            with suppress(OSError):  # `answers` reports workers that have died
                control.send(None)
        began, used = time.monotonic(), time.thread_time()
        due_s += began + _HEAD_START_S
        due = due_s.tolist()
        with suppress(OSError):
            while sent < len(due):
                now = time.monotonic()
                until = bisect_right(due, now, sent)
                if until == sent:
                    # Sleep instead of polling, because the generator may share a processor with a worker.
                    time.sleep(due[sent] - now)
                    continue
                os.write(self.queue, numbers[sent:until].tobytes())
                sent_s[sent:until] = now
                sent = until
            os.write(self.queue, _STOP * len(self.workers))
        busy = (time.thread_time() - used) / (time.monotonic() - began)
        return Window(sum(self.answers()), self.finished_s[: len(due)] - due_s, sent_s - due_s, busy)

    def answers(self) -> list[float]:
        """Wait for one number from each worker; raise `MeasurementError` if a worker failed, died or hung."""
        answers = []
        for process, control in self.workers.items():
            try:
                answer: str | float = control.recv() if control.poll(_PATIENCE_S) else "A worker did not respond."
            except (EOFError, OSError) as error:
                process.join()
                raise MeasurementError(f"A worker process {describe_end(process.exitcode or 0)}") from error
            if isinstance(answer, str):
                raise MeasurementError(answer)
            answers.append(answer)
        return answers


@contextmanager
def running_fleet(subject: Subject, processes: int, threads: int, loader: str) -> Iterator[Fleet]:
    """Start workers that load, check and warm up the subject; stop the workers when the block ends."""
    (taken, queue), context = os.pipe(), get_context("fork")
    fleet = Fleet({}, queue, np.frombuffer(mmap.mmap(-1, _MOST_REQUESTS * len(_STOP)), dtype=np.float64))
    try:
        for index in range(processes):
            ours, theirs = context.Pipe()
            pinned = affinity()[index * threads : (index + 1) * threads]
            worker = context.Process(target=_work, args=(subject, loader, pinned, theirs, taken, fleet.finished_s))
            worker.start()
            theirs.close()
            fleet.workers[worker] = ours
        os.close(taken)  # if all workers die, sending a request fails instead of waiting
        fleet.call_s = float(np.mean(fleet.answers()))
        yield fleet
    finally:
        for worker in fleet.workers:
            worker.kill()  # kill at once, because a worker has nothing to clean up and may hang in a call
            worker.join()
        os.close(queue)


def _work(
    subject: Subject, loader: str, pinned: Sequence[int], control: Connection, queue: int, finished_s: Array
) -> None:
    # With `PR_SET_PDEATHSIG`, stop if the parent dies, because workers share the pipes and never see a closed pipe.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    with suppress(OSError):  # some sandboxes block ``sched_setaffinity``
        os.sched_setaffinity(0, pinned)
    torch.set_num_threads(len(pinned))
    with torch.inference_mode():
        try:
            loaded = resolve_name(loader)(subject)
            with loaded.scope(), no_garbage_collection():
                problem = disagreement(tensors_of(loaded.call()), loaded.golden)
                control.send(problem or warm_up(loaded.call, _WARM_UP_CALLS, _WARM_UP_S))
                while True:
                    control.recv()
                    # The kernel locks the pipe while it copies a number, so one worker gets all bytes of a number.
                    number, calls, began = os.read(queue, len(_STOP)), 0, time.monotonic()
                    while number != _STOP:
                        loaded.call()
                        finished_s[int.from_bytes(number, "little")] = time.monotonic()
                        calls, number = calls + 1, os.read(queue, len(_STOP))
                    control.send(calls / (time.monotonic() - began))
        except Exception as error:  # noqa: BLE001 - the report names the subject's error
            control.send(f"the candidate does not run: {type(error).__name__}: {error}")
