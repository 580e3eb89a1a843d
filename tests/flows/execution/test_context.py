"""What is heard of stages, whatever thread is quicker."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
    """Notes which stages begin, and leaves a file for each, by its number."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.labels = folder, list[str]()

    def started(self, label: str) -> None:
        self.labels.append(label)
        (self.folder / str(len(self.labels))).touch()


@pytest.fixture
def execution(tmp_path: Path) -> Iterator[Execution]:
    made = Execution(Settings(workers=1), Starts(tmp_path))
    with disable_run_logger():
        yield made
    made.workers.stop()


def starts(execution: Execution) -> list[str]:
    assert isinstance(execution.reporter, Starts)
    return execution.reporter.labels


@pytest.mark.slow
def test_a_beginning_that_is_heard_after_the_end_is_none(execution: Execution, tmp_path: Path) -> None:
    execution.run(worker_stages.echo, "build", 60, str(tmp_path), 1)
    before = list(starts(execution))
    execution._receive("build", 0, 0, STARTED)
    assert starts(execution) == before


@pytest.mark.slow
def test_two_stages_with_one_label_are_reported_apart_and_stopped_apart(tmp_path: Path) -> None:
    execution = Execution(Settings(workers=2), Starts(tmp_path))
    with ThreadPoolExecutor() as threads, disable_run_logger():
        stages = [
            threads.submit(execution.run, worker_stages.hang, "lstm: compare", None, str(tmp_path)) for _ in range(2)
        ]
        while len(starts(execution)) < len(stages):
            assert not any(stage.done() for stage in stages)
            time.sleep(0.05)
        execution.workers.stop()
        assert [type(stage.exception()) for stage in stages] == [StoppedError, StoppedError]
    assert sorted(starts(execution)) == ["lstm: compare", "lstm: compare (2)"]
    assert execution._awaited == {}
