"""Where benchmarks are submitted, and what is reported of settings besides the primary one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from flows import fan_out
from flows.settings import Settings
from tasks.results import CandidateResult, WorkloadResult
from tests.tasks.test_gate import workload


def test_a_refusal_in_a_further_setting_is_told_and_fails_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"int8/eager (batch 64, 1 thread)": "its output is NaN", "half/eager": "its output differs"}
    attempts, told = [SimpleNamespace(refused=refused)], []
    monkeypatch.setattr(fan_out, "settle", lambda future, stage: attempts)
    execution = SimpleNamespace(reporter=SimpleNamespace(noted=told.append))
    monkeypatch.setattr(fan_out, "current_execution", lambda: execution)
    candidates = tuple(CandidateResult(recipe=name, runtime="eager") for name in ("float", "int8", "half"))
    future: Any = None

    with disable_run_logger():
        result = fan_out._with_benchmark(WorkloadResult(workload=workload(), candidates=candidates), future)

    assert told == ["demo · int8/eager (batch 64, 1 thread): not timed: its output is NaN"]
    assert [one.failure.error if one.failure else "" for one in result.candidates] == ["", "", "its output differs"]


def test_benchmarks_take_the_hosts_of_a_cluster_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    @contextmanager
    def pin(host: str) -> Iterator[None]:
        entered.append(host)
        yield

    monkeypatch.setattr(fan_out, "place_benchmarks", lambda settings: (partial(pin, "left"), partial(pin, "right")))
    results = [WorkloadResult(workload=workload(), candidates=())] * 3

    assert list(fan_out.benchmark_all(results, Settings(), "store")) == results
    assert entered == ["left", "right", "left"]
