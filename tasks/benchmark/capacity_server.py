"""The server scenario: send requests at random times without waiting for answers, and find the highest possible rate.

The schedule is made in advance, and a latency begins at the scheduled time. Otherwise, a slow answer would delay the
next requests, and the queueing would not be counted (coordinated omission). Requests arrive as in a Poisson process.
All subjects of a round get the same random numbers, so their ratio is more exact than their rates.
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

# Share of the latencies that must be within the bound.
SHARE = 0.99
# The generator is the bottleneck above these fractions: lag ÷ latency bound, and busy time ÷ elapsed time.
LATE, BUSY = 0.1, 0.8
_PRECISION = 1.02  # ratio between the lowest rate that fails and the highest that passes
_FIRST_STEP = 1.04
_LOWEST = 0.01  # share of the highest throughput below which the search ends


@dataclass(frozen=True)
class Probe:
    """Times of requests that were sent at ``rate`` per second, as float64 [requests] arrays in seconds.

    Both times begin at the scheduled time; ``latency_s`` ends with the answer, and ``lag_s`` when the request is sent.
    ``busy`` is the generator's processor time ÷ elapsed time.
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
        Times between requests in units of the mean time, float64 [requests].
    """
    numbers, count = np.arange(len(gaps), dtype=np.int64).tobytes(), len(gaps)
    item = len(numbers) // count
    sent_s = np.empty(count)
    due_s = np.cumsum(gaps) / rate + fleet.open()
    due = due_s.tolist()
    began, used, done = time.monotonic(), time.thread_time(), 0
    with no_garbage_collection():
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
    """Find the highest rate at which the latency's 99th percentile is at most `bound_s`, or return None.

    The search takes growing steps from `guess` until it has a rate that passes and a rate that fails, and then bisects.
    Rates above `ceiling`, the highest throughput, are not tried: in a short time, their queue stays short by chance.
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
        if passed is None and rate <= lowest:
            return None
        rate = min(max(rate * step if passed else rate / step, lowest), ceiling)
        step **= 2
    return passed


def generator_limit(lag_s: Array, busy: float, bound_s: float) -> str:
    """Describe how the generator limited the requests at the highest rate, or return ``""``."""
    late_s = float(np.quantile(lag_s, SHARE))
    if late_s > LATE * bound_s:
        return f"the generator, whose 99th percentile was {late_s * 1e3:.3g} ms late"
    return f"the generator, which was busy {busy:.0%} of the time" if busy > BUSY else ""
