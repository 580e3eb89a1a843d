"""A fleet of worker processes: each worker is pinned to its own processors and calls the same subject.

The workers are forked from a process that has imported the libraries, so each worker only has to load and warm up the
model. A pipe serves as the request queue. The request generator writes request numbers, and the kernel passes each
number to one idle worker, in order.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pkgutil import resolve_name

import numpy as np
import torch

from storage.errors import MeasurementError
from tasks.benchmark.capacity_messages import Split
from tasks.benchmark.child import describe_end
from tasks.benchmark.launch import disagreement
from tasks.benchmark.messages import Subject
from tasks.benchmark.rounds import Call, Loaded, no_garbage_collection, warm_up
from tasks.benchmark.statistics import Array
from tasks.outputs import tensors_of

_WARM_UP_CALLS, _WARM_UP_S = 5, 0.2
# A worker counts as hung if its answer is overdue by this many seconds.
_PATIENCE_S = 60.0
_HEAD_START_S = 0.002  # time allowed for all workers to receive an order
_BYTES, _STOP = 8, -1
_QUEUE_BYTES = 1 << 20  # Linux's default limit on the size of an unprivileged user's pipe
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Window:
    """Results of a window in which all workers made calls continuously; ``call_s`` is the mean duration of a call."""

    calls_per_s: float
    call_s: float


@dataclass
class Fleet:
    """A running fleet; the queue has room for ``most_requests`` requests."""

    workers: dict[ForkProcess, Connection]
    queue: int
    most_requests: int
    finished_s: Array

    def repeat(self, window_s: float) -> Window:
        """Keep all workers busy for about `window_s` seconds."""
        start = time.monotonic() + _HEAD_START_S
        self._order((start, start + window_s))
        results = self._answers(window_s)
        return Window(
            sum(calls / elapsed_s for calls, elapsed_s in results),
            sum(elapsed_s for _, elapsed_s in results) / sum(calls for calls, _ in results),
        )

    def open(self) -> float:
        """Let the workers serve the queue; return the earliest time, on the monotonic clock, for the first request."""
        self._order(None)
        return time.monotonic() + _HEAD_START_S

    def put(self, numbers: bytes) -> None:
        """Append requests to the queue without waiting for the workers."""
        os.write(self.queue, numbers)

    def close(self) -> None:
        """Wait until the workers have served all requests."""
        self.put(_number(_STOP) * len(self.workers))
        self._answers(0.0)

    def _order(self, order: tuple[float, float] | None) -> None:
        for process, control in self.workers.items():
            try:
                control.send(order)
            except OSError as error:
                raise _ended(process) from error

    def _answers(self, planned_s: float) -> list[tuple[int, float]]:
        answers = []
        for process, control in self.workers.items():
            answer = _answer(process, control, planned_s + _PATIENCE_S)
            if isinstance(answer, str):
                raise MeasurementError(f"A worker failed: {answer}.")
            answers.append(answer)
        return answers


@contextmanager
def running_fleet(subject: Subject, split: Split, loader: str, processors: Sequence[int]) -> Iterator[Fleet]:
    """Start a fleet whose workers have loaded, checked and warmed up the subject; stop the fleet when the block ends.

    Raises
    ------
    MeasurementError
        A worker died, hung, could not load the subject, or computed outputs that differ from the golden outputs.
    """
    taken, queue = os.pipe()
    with suppress(OSError):  # some systems allow only smaller pipes
        fcntl.fcntl(queue, fcntl.F_SETPIPE_SZ, _QUEUE_BYTES)
    # Leave room for a partly read page, and for the numbers that stop the workers.
    most = fcntl.fcntl(queue, fcntl.F_GETPIPE_SZ) // _BYTES - mmap.PAGESIZE // _BYTES - split.processes
    finished_s = np.frombuffer(mmap.mmap(-1, most * _BYTES), dtype=np.float64)
    fleet = Fleet({}, queue, most, finished_s)
    context = get_context("fork")
    try:
        for index in range(split.processes):
            pinned = processors[index * split.threads : (index + 1) * split.threads]
            ours, theirs = context.Pipe()
            opened = partial(resolve_name(loader), subject)
            worker = context.Process(target=_work, args=(opened, split.threads, pinned, theirs, taken, finished_s))
            worker.start()
            theirs.close()
            fleet.workers[worker] = ours
        for worker, control in fleet.workers.items():
            if problem := _answer(worker, control, 10 * _PATIENCE_S):
                raise MeasurementError(str(problem))
        yield fleet
    finally:
        for worker, control in fleet.workers.items():
            worker.kill()  # kill at once, because a worker has nothing to clean up and may hang in a call
            worker.join()
            control.close()
        os.close(queue)
        os.close(taken)


def _work(
    load: Callable[[], Loaded], threads: int, pinned: Sequence[int], control: Connection, queue: int, finished_s: Array
) -> None:
    """Carry out the fleet's orders until the fleet shuts down; this function runs in a worker process."""
    # Stop if the parent process dies, because the workers share the pipes and would never see a closed pipe.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if pinned:
        with suppress(OSError):  # some sandboxes block ``sched_setaffinity``
            os.sched_setaffinity(0, pinned)
    torch.set_num_threads(threads)
    with torch.inference_mode():
        try:
            loaded = load()
            with loaded.scope():
                problem = disagreement(tensors_of(loaded.call()), loaded.golden)
                warm_up(loaded.call, _WARM_UP_CALLS, _WARM_UP_S)
                control.send(problem)
                with no_garbage_collection():
                    while True:
                        order: tuple[float, float] | None = control.recv()
                        call = loaded.call
                        control.send(_repeat(call, *order) if order else _serve(call, queue, finished_s))
        except Exception as error:  # noqa: BLE001 - the report names the subject's error
            control.send(f"the candidate does not run: {type(error).__name__}: {error}")


def _repeat(call: Call, start: float, end: float) -> tuple[int, float]:
    time.sleep(max(0.0, start - time.monotonic()))
    calls, began = 0, time.monotonic()
    while calls == 0 or time.monotonic() < end:
        call()
        calls += 1
    return calls, time.monotonic() - began


def _serve(call: Call, queue: int, finished_s: Array) -> tuple[int, float]:
    calls, began = 0, time.monotonic()
    while (number := _read(queue)) != _STOP:
        call()
        finished_s[number] = time.monotonic()
        calls += 1
    return calls, time.monotonic() - began


def _read(queue: int) -> int:
    # The kernel holds the pipe's lock while it copies a number, so all bytes of a number go to the same worker.
    return int.from_bytes(os.read(queue, _BYTES), sys.byteorder, signed=True)


def _number(value: int) -> bytes:
    return value.to_bytes(_BYTES, sys.byteorder, signed=True)


def _answer(process: ForkProcess, control: Connection, patience_s: float) -> str | tuple[int, float]:
    try:
        if not control.poll(patience_s):
            raise MeasurementError(
                f"A worker process did not respond within {patience_s:.0f} s.", hint="Try again on an idle host."
            )
        answer: str | tuple[int, float] = control.recv()
    except (EOFError, OSError) as error:
        raise _ended(process) from error
    return answer


def _ended(process: ForkProcess) -> MeasurementError:
    process.join()
    return MeasurementError(f"A worker process {describe_end(process.exitcode or 0)}")
