"""Runs fleets in a process of their own, as the measurement does, for `tasks.benchmark.child`."""

from __future__ import annotations

import os
import signal

import numpy as np

from storage.errors import MeasurementError
from tasks.benchmark.capacity_fleet import running_fleet
from tasks.benchmark.capacity_messages import Split
from tasks.benchmark.capacity_server import offer
from tasks.benchmark.messages import ChildSpec
from tasks.machine import affinity
from tasks.refs import Frozen


class Seen(Frozen):
    """What happened: errors by subject, the latencies of the first, and the workers that were left behind."""

    errors: dict[str, str]
    calls_per_s: float = 0.0
    latency_s: tuple[float, ...] = ()
    sent: int = 0
    left: tuple[int, ...] = ()


def run(spec_json: str) -> Seen:
    """Serve ten requests at a rate above what the first subject can serve; try to open the others.

    With two threads, die while the workers wait: their numbers are then on standard output.
    """
    spec = ChildSpec.model_validate_json(spec_json)
    split = Split(processes=1, threads=1, batch_size=1)
    processors = affinity()[:1]
    errors: dict[str, str] = {}
    first, *others = spec.subjects
    for subject in others:
        try:
            with running_fleet(subject, split, spec.loader, processors) as fleet:
                fleet.repeat(0.01)
        except MeasurementError as error:
            errors[subject.name] = str(error)
    with running_fleet(first, split, spec.loader, processors) as fleet:
        if spec.threads == 2:
            print(*(worker.pid for worker in fleet.workers), flush=True)  # noqa: T201
            os.kill(os.getpid(), signal.SIGKILL)
        calls_per_s = fleet.repeat(0.2).calls_per_s
        probe = offer(fleet, np.ones(10), 100 * calls_per_s)
        workers = [worker.pid for worker in fleet.workers if worker.pid]
    return Seen(
        errors=errors,
        calls_per_s=calls_per_s,
        latency_s=tuple(probe.latency_s.tolist()),
        sent=len(probe.lag_s),
        left=tuple(worker for worker in workers if _lives(worker)),
    )


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
