"""Messages to and from the process that measures capacity: a request and a report."""

from __future__ import annotations

from pydantic import Field

from storage.results import Scenario
from tasks.benchmark.messages import ChildSpec
from tasks.refs import Frozen


class Split(Frozen):
    """A division of the work among processors: the number of processes, threads per process, and rows per call."""

    processes: int
    threads: int
    batch_size: int

    def __str__(self) -> str:
        processes = f"{self.processes} process{'es' if self.processes > 1 else ''}"
        return f"{processes} × {self.threads} thread{'s' if self.threads > 1 else ''}, batch {self.batch_size}"


class CapacitySpec(ChildSpec):
    """Subjects to measure, beginning with the baseline; if the budget is too small, the last subjects are left out.

    ``request_rows`` is the number of rows in a request. ``goldens`` maps batch sizes to files with inputs; for any
    other batch size, the subject's own inputs are used. ``bound_s`` limits the 99th percentile of the latency in the
    server scenario. The time budget starts at ``spawned_at`` on the monotonic clock.
    """

    scenario: Scenario
    splits: tuple[Split, ...]
    request_rows: int
    goldens: dict[int, str] = Field(default={})
    bound_s: float = 0.0
    budget_s: float
    seed: int
    spawned_at: float


class Served(Frozen):
    """One subject's best split, and the requests per second in each round of each sitting.

    In the server scenario, the latency percentiles are computed from ``requests`` requests. Each request was sent at
    the highest rate that met the latency bound in its round. ``limit`` describes how the request generator limited
    the rate, or is ``""``.
    """

    split: Split
    rps: tuple[tuple[float, ...], ...] = ()
    requests: int = 0
    p50_s: float | None = None
    p99_s: float | None = None
    p999_s: float | None = None
    limit: str = ""


class CapacityReport(Frozen):
    """Results by subject, in the order of the request; ``refused`` maps subjects to the reasons for refusal."""

    subjects: dict[str, Served]
    refused: dict[str, str]
