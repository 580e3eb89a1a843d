"""The keys of ``[benchmark.capacity]``, which control the measurement of a host's capacity in requests per second."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from storage.results import Scenario
from tasks.workload.base import Section


class Capacity(Section):
    """Settings for the capacity measurement; without this section, a run does not measure capacity.

    A request is a call with `benchmark.batch_size` rows. Without `latency_bound_ms`, all processors are kept busy.
    """

    latency_bound_ms: PositiveFloat | None = None
    """Send requests at random times, and limit the 99th-percentile latency, including queueing, to this value."""
    threads: PositiveInt = 1
    """Number of threads per process; there are as many processes as the processors allow."""
    budget_s: PositiveFloat = 90.0
    """Time budget for the measurement, in seconds, shared by all candidates of the workload."""

    @property
    def scenario(self) -> Scenario:
        """The kind of load, with MLPerf's names."""
        return "offline" if self.latency_bound_ms is None else "server"
