"""The server scenario: send requests without waiting for answers, and find the highest rate that meets a latency bound.

Requests are scheduled in advance, and each latency is measured from the scheduled time. If each request waited for the
previous answer, slow answers would hide the queueing (coordinated omission). Arrival times follow a Poisson process.
All subjects in a round get the same random numbers, so the ratio of two rates is more precise than either rate.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tasks.benchmark.capacity_fleet import Fleet
from tasks.benchmark.rounds import no_garbage_collection
from tasks.benchmark.statistics import Array

# Share of requests that must be answered within the latency bound.
SHARE = 0.99
# The generator counts as the bottleneck if lag ÷ latency bound exceeds `LATE`, or if busy time ÷ elapsed time exceeds
# `BUSY`.
LATE, BUSY = 0.1, 0.8
_PRECISION = 1.02  # the search stops when the lowest failing rate is at most this multiple of the highest passing rate
_FIRST_STEP = 1.04
_LOWEST = 0.01  # the search does not try rates below this share of the highest throughput


@dataclass(frozen=True)
class Probe:
    """Timings, in seconds, of requests sent at ``rate`` requests per second; each array is float64 [requests].

    ``latency_s`` is the time from a request's scheduled start to the answer. ``lag_s`` is the delay in sending the
    request. ``busy`` is the generator's processor time divided by the elapsed time.
    """

    rate: float
    latency_s: Array
    lag_s: Array
    busy: float

    def is_within(self, bound_s: float) -> bool:
        """Return whether the 99th percentile of the latency is at most `bound_s`."""
        return float(np.quantile(self.latency_s, SHARE)) <= bound_s


def offer(fleet: Fleet, gaps: Array, rate: float) -> Probe:
    """Send requests at `rate` per second and wait for the answers.

    Parameters
    ----------
    gaps
        Times between requests, divided by their mean, float64 [requests].
    """
    numbers, count = np.arange(len(gaps), dtype=np.int64).tobytes(), len(gaps)
    item = len(numbers) // count
    sent_s = np.empty(count)
    # Collect garbage before the first scheduled time, so that collections do not delay requests.
    with no_garbage_collection():
        due_s = np.cumsum(gaps) / rate + fleet.open()
        due = due_s.tolist()
        began, used, done = time.monotonic(), time.thread_time(), 0
        while done < count:
            now = time.monotonic()
            until = bisect_right(due, now, done)
            if until == done:
                # Sleep instead of polling, because the generator may share a processor with a worker.
                time.sleep(due[done] - now)
                continue
            fleet.put(numbers[item * done : item * until])
            sent_s[done:until] = now
            done = until
    busy = (time.thread_time() - used) / (time.monotonic() - began)
    fleet.close()
    return Probe(rate, fleet.finished_s[:count] - due_s, sent_s - due_s, busy)


def highest_rate(attempt: Callable[[float], Probe], bound_s: float, guess: float, ceiling: float) -> Probe | None:
    """Find the highest rate at which the latency's 99th percentile is at most `bound_s`.

    Return None if even the lowest rate fails, or if even the fastest answer in a test takes longer than `bound_s`. In
    the latter case, a request takes too long without any queueing. The search takes growing steps from `guess` until it
    has a rate that passes and a rate that fails, and then bisects. Rates above `ceiling`, the highest throughput, are
    not tried, because a short test at such a rate may pass by chance.
    """
    passed: Probe | None = None
    lowest = ceiling * _LOWEST
    failed, step, rate = math.inf, _FIRST_STEP, min(guess, ceiling)
    while passed is None or failed / passed.rate > _PRECISION:
        probe = attempt(rate)
        if probe.is_within(bound_s):
            passed = probe
        else:
            failed = rate
        if passed is not None and failed < math.inf:
            rate = math.sqrt(passed.rate * failed)
            continue
        if passed is not None and passed.rate >= ceiling:
            break
        if passed is None and (rate <= lowest or probe.latency_s.min() > bound_s):
            return None
        rate = min(max(rate * step if passed else rate / step, lowest), ceiling)
        step **= 2
    return passed


def generator_limit(lag_s: Array, busy: float, bound_s: float) -> str:
    """Describe how the generator limited the highest rate; return ``""`` if the generator was not the bottleneck."""
    late_s = float(np.quantile(lag_s, SHARE))
    if late_s > LATE * bound_s:
        return f"the generator, which sent 1% of the requests at least {late_s * 1e3:.3g} ms late"
    return f"the generator, which was busy {busy:.0%} of the time" if busy > BUSY else ""
