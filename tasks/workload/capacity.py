"""The keys of ``[benchmark.capacity]``, which control the measurement of a host's capacity in requests per second."""

from __future__ import annotations

from typing import Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from storage.results import Scenario
from tasks.workload.base import Section


class Capacity(Section):
    """Settings for the capacity measurement; without this section, a run does not measure capacity.

    A request is a call with `benchmark.batch_size` rows.
    """

    scenario: Scenario
    """Kind of load: `offline` keeps all processors busy, and `server` sends requests at random times."""
    latency_bound_ms: PositiveFloat | None = None
    """Maximum 99th-percentile latency in milliseconds, including queueing; required for `server`."""
    processes: tuple[PositiveInt, ...] = ()
    """Numbers of processes to try; the default is just enough processes to keep all processors busy."""
    threads: tuple[PositiveInt, ...] = ()
    """Numbers of threads per process to try; the default is every power of two up to the number of processors."""
    batch_sizes: tuple[PositiveInt, ...] = ()
    """Batch sizes to try in the `offline` scenario; the defaults are 1, 4 and 16 times `benchmark.batch_size`."""
    budget_s: PositiveFloat = 90.0
    """Time budget for the measurement, in seconds, shared by all candidates of the workload."""
    price_per_hour: PositiveFloat | None = None
    """Price of the host per hour, in any currency; used to calculate the cost per million requests."""
    in_quick: bool = False
    """Whether runs with the `quick` profile also measure capacity."""

    @model_validator(mode="after")
    def _check_bound(self) -> Self:
        if self.scenario == "server" and self.latency_bound_ms is None:
            raise ValueError(
                'scenario "server" requires latency_bound_ms; set this key to the maximum latency in milliseconds'
            )
        if self.scenario == "offline" and self.latency_bound_ms is not None:
            raise ValueError(
                'latency_bound_ms applies only to scenario "server"; remove this key, or set scenario = "server"'
            )
        if self.scenario == "server" and self.batch_sizes:
            raise ValueError(
                'batch_sizes applies only to scenario "offline"; remove this key, or set scenario = "offline"'
            )
        return self
