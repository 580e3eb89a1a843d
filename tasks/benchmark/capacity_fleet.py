"""A fleet of worker processes that call the same subject, and the load generator that sends them requests.

A pipe serves as the request queue: the generator writes request numbers, and the kernel passes each number to one idle
worker, in order. Requests are scheduled in advance, and each latency is measured from the scheduled time. If each
request waited for the previous answer, slow answers would hide the queueing (coordinated omission).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pkgutil import resolve_name

import numpy as np
import torch

from storage.errors import MeasurementError
from tasks.benchmark.child import describe_end
from tasks.benchmark.launch import disagreement
from tasks.benchmark.messages import Subject
from tasks.benchmark.rounds import no_garbage_collection, warm_up
from tasks.benchmark.statistics import Array
from tasks.machine import affinity
from tasks.outputs import tensors_of

_WARM_UP_CALLS, _WARM_UP_S = 5, 0.2
_PATIENCE_S = 300.0  # a worker counts as hung if it does not answer within this time
_HEAD_START_S = 0.002  # time allowed for all workers to start to wait for requests
_MOST_REQUESTS = 1 << 17
_STOP = np.int64(-1).tobytes()


@dataclass(frozen=True)
class Window:
    """Timings of requests, in seconds; each array is float64 [requests].

    ``latency_s`` is the time from a request's scheduled start to the answer, and ``lag_s`` the delay in sending it.
    ``busy`` is the generator's processor time divided by the elapsed time.
    """

    calls_per_s: float
    latency_s: Array
    lag_s: Array
    busy: float


@dataclass
class Fleet:
    """A running fleet; ``call_s`` is the duration of a call during the warm-up."""

    workers: dict[ForkProcess, Connection]
    queue: int
    finished_s: Array
    call_s: float = 0.0

    def burst(self, window_s: float) -> Window:
        """Keep all workers busy for about `window_s` seconds by sending all requests at once."""
        return self.serve(np.zeros(max(1, round(window_s / self.call_s)) * len(self.workers)))

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
