"""Measure how many requests per second the host can serve; `tasks.benchmark.child` runs this module.

The process measures capacity in sittings. In each sitting, all subjects are measured in turn, each with new workers.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from storage.errors import MeasurementError
from tasks.benchmark.messages import ChildSpec
from tasks.benchmark.statistics import Array
from tasks.refs import Frozen

if TYPE_CHECKING:  # the process of the run imports this module without torch
    from tasks.benchmark.capacity_fleet import Fleet, Window

_OFFLINE_S, _SERVER_S, _FEWEST_REQUESTS = 0.5, 0.25, 100  # lengths of windows, and requests in a window
_SEED, _FEWEST_SITTINGS, _MOST_SITTINGS = 29592, 3, 20
# Minimum numbers of requests for each percentile: at least ten latencies must exceed the percentile.
_PERCENTILES = (("capacity_p50_s", 0.5, 1), ("capacity_p99_s", 0.99, 1_000), ("capacity_p999_s", 0.999, 10_000))
_SHARE = 0.99  # share of requests that must be answered within the latency bound
_PRECISION, _LOWEST = 1.02, 0.01  # of the highest rate, and the lowest rate as a share of the highest throughput
# The generator counts as the bottleneck if lag ÷ latency bound or busy time ÷ elapsed time exceeds these numbers.
_LATE, _BUSY = 0.1, 0.8


class CapacitySpec(ChildSpec):
    """Subjects to measure, beginning with the baseline; if the budget is too small, the last subjects are left out.

    ``bound_s`` limits the 99th percentile of the latency; 0 stands for the offline scenario.
    """

    processes: int
    bound_s: float = 0.0
    budget_s: float


class Served(Frozen):
    """Requests per second in each sitting, latency percentiles by column, and how the load generator limited them."""

    rps: tuple[float, ...]
    percentiles: dict[str, float] = Field(default={})
    limit: str = ""


class CapacityReport(Frozen):
    """Results by subject; ``refused`` maps subjects to the reasons for refusal."""

    subjects: dict[str, Served]
    refused: dict[str, str]


def run(spec_json: str) -> CapacityReport:
    """Execute a `CapacitySpec`; this process must not call torch, because its workers are forked."""
    from tasks.benchmark.capacity_fleet import running_fleet

    spec = CapacitySpec.model_validate_json(spec_json)
    importlib.import_module(spec.loader.partition(":")[0])
    # Without `gc.freeze`, garbage collection in a worker would touch, and therefore copy, every object of this process.
    gc.freeze()
    results: dict[str, list[tuple[float, Window]]] = {subject.name: [] for subject in spec.subjects}
    began, baseline, refused = time.monotonic(), spec.subjects[0].name, dict[str, str]()
    for sitting in range(_MOST_SITTINGS):
        spent_s, kept = time.monotonic() - began, [each for each in spec.subjects if each.name not in refused]
        if baseline in refused or (sitting >= _FEWEST_SITTINGS and spent_s * (1 + 1 / sitting) > spec.budget_s):
            break
        # Every second sitting reverses the order, so a linear drift does not favour any subject.
        for index, subject in enumerate(kept[:: -1 if sitting % 2 else 1]):
            spent_s = time.monotonic() - began
            # Measure at least two subjects, because the baseline's capacity alone does not affect decisions.
            if sitting == 0 and index > 1 and spent_s * (1 + 1 / index) * _FEWEST_SITTINGS > spec.budget_s:
                refused[subject.name] = f"budget_s = {spec.budget_s:g} is not sufficient for {len(kept)} models"
                continue
            try:
                with running_fleet(subject, spec.processes, spec.threads, spec.loader) as fleet:
                    results[subject.name].append(_measure(fleet, spec.bound_s, sitting))
            except MeasurementError as error:
                refused[subject.name] = str(error)
    if baseline in refused:
        refused = dict.fromkeys(results, f"the baseline's capacity is unknown: {refused[baseline]}") | refused
    served = {name: _served(rows, spec.bound_s) for name, rows in results.items() if name not in refused}
    return CapacityReport(subjects=served, refused=refused)


def _measure(fleet: Fleet, bound_s: float, sitting: int) -> tuple[float, Window]:
    burst = fleet.burst(_SERVER_S if bound_s else _OFFLINE_S)

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
    wanted = {name: share for name, share, least in _PERCENTILES if len(latency_s) >= least}
    percentiles = {name: float(np.quantile(latency_s, share)) for name, share in wanted.items()}
    lag_s, busy = np.concatenate([window.lag_s for window in windows]), np.mean([window.busy for window in windows])
    return Served(rps=rps, percentiles=percentiles, limit=generator_limit(lag_s, float(busy), bound_s))


def highest_rate(attempt: Callable[[float], Window], bound_s: float, ceiling: float) -> tuple[float, Window]:
    """Find the highest rate at which the latency's 99th percentile is at most `bound_s`, and its window, by bisection.

    A rate fails only if two tests fail, because other programs can make a test fail. Rates above `ceiling`, the highest
    throughput, are not tried, because a short test at such a rate may pass by chance. Raise `MeasurementError` if no
    rate passes, or at once if even the fastest answer in a test takes longer than `bound_s`.
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
