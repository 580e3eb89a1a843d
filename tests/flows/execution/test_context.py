"""What is heard of stages, whatever thread is quicker."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows.execution.context import Execution
from flows.execution.workers import STARTED, StoppedError
from flows.reporter import Reporter
from flows.settings import Settings
from tests.flows.execution import worker_stages


class Starts(Reporter):
    """Notes which stages begin."""

    def __init__(self) -> None:
        self.labels = list[str]()

    def started(self, label: str) -> None:
        self.labels.append(label)


@pytest.mark.slow
def test_two_stages_with_one_label_are_reported_and_stopped_separately(tmp_path: Path) -> None:
    starts = Starts()
    execution = Execution(Settings(workers=2), starts)
    with ThreadPoolExecutor() as threads, disable_run_logger():
        stages = [
            threads.submit(execution.run, worker_stages.hang, "lstm: compare", None, str(tmp_path)) for _ in range(2)
        ]
        while len(starts.labels) < len(stages):
            assert not any(stage.done() for stage in stages)
            time.sleep(0.05)
        execution.workers.stop()
        assert [type(stage.exception()) for stage in stages] == [StoppedError, StoppedError]
    assert sorted(starts.labels) == ["lstm: compare", "lstm: compare (2)"]
    execution._receive("lstm: compare", 0, 0, STARTED)  # heard after the end
    assert len(starts.labels) == 2
