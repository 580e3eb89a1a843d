"""When the benchmarks of several workloads are submitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.fan_out import benchmark_all
from flows.settings import Settings
from flows.steps import Place
from tasks.values.results import WorkloadResult
from tests.tasks.decide.test_gate import workload


@pytest.mark.parametrize(
    ("runner", "expected"),
    [("threads", ["submitted", "through"] * 2), ("dask", ["submitted"] * 2 + ["through"] * 2)],
)
def test_a_cluster_gets_every_benchmark_at_once(runner: str, expected: list[str]) -> None:
    events: list[str] = []
    result = WorkloadResult(workload=workload(), candidates=())

    def submitted() -> Iterator[WorkloadResult]:
        for _ in range(2):
            events.append("submitted")
            yield result

    for through in benchmark_all(submitted(), Settings(task_runner=runner), Place("store")):
        assert through == result
        events.append("through")
    assert events == expected
