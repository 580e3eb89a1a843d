"""What the night tells of benchmark settings besides the primary one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from flows import fan_out
from tasks.record import CandidateResult, WorkloadResult
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
