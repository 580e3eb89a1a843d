"""Stages that meet a network or a server that fails: tried again, or not, and what is heard of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pytest
from prefect import flow

from flows import steps
from flows.execution.context import Execution, executing
from flows.execution.task_runners import make_task_runner
from flows.reporter import Reporter
from flows.settings import Settings
from storage.errors import InputError, MeasurementError, StoreError
from storage.results.query import run_query
from tasks.results import RunInfo
from tests.flows.execution import worker_stages
from tests.storage.conftest import s3_endpoint, s3_store  # noqa: F401 - fixtures
from tests.storage.http_server import Site, serving
from tests.storage.results.rows import measurement
from tests.storage.s3_server import answering

pytestmark = pytest.mark.server
RUN = RunInfo(run_id="2026-11-21-1", night=date(2026, 11, 21), profile="quick")


class Heard(Reporter):
    """Notes what it hears, and leaves a file for each stage whose progress it has heard."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, list[str]()

    def started(self, label: str) -> None:
        self.lines.append(f"{label} …")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        self.lines.append(f"{label}: {done} of {total} {unit}")
        (self.folder / f"{done}").touch()

    def finished(self, label: str, seconds: float, error: str = "") -> None:
        self.lines.append(f"{label}: {'failed' if error else 'done'}")

    def noted(self, text: str) -> None:
        self.lines.append(text)


@steps._stage("fetch", "{name}")
def fetch(name: str, url: str, folder: str, store: str) -> bytes:
    """Ask once for a file, in a worker, after telling of the attempt."""
    return steps._run(worker_stages.fetch, store, url, folder)


@steps._stage("count", "{name}")
def count(name: str, folder: str, refused: int, store: str) -> int:
    """Be refused for now as often as is asked for, in a worker."""
    return steps._run(worker_stages.count_attempts, store, folder, refused)


@steps._stage("hang", "{name}")
def hang(name: str, left_s: float, store: str) -> None:
    """Hang in a worker until a deadline."""
    steps._run(worker_stages.hang, store, deadline=time.time() + left_s)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(b"content")) as running:
        yield running


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    return Heard(tmp_path)


@contextmanager
def executed(heard: Heard) -> Iterator[Execution]:
    with executing(Settings(workers=1, retry_wait_s=0), heard) as execution:
        yield execution


def fetched(site: Site, heard: Heard) -> object:
    """What the stage gives in a flow, or the error that it ends with."""

    @flow(persist_result=False)
    def one_stage() -> bytes:
        with executed(heard):
            return fetch("demo", site.url, str(heard.folder), str(heard.folder / "store"))

    return one_stage()


def test_a_stage_whose_server_failed_is_tried_again_and_shows_its_progress(
    prefect_server: None, site: Site, heard: Heard
) -> None:
    site.statuses = [503]
    assert fetched(site, heard) == b"content"
    assert len(site.asked) == 2
    assert heard.lines == [
        "demo: fetch …",
        "demo: fetch: 1 of 9 attempts",
        "demo: fetch: failed",
        "demo: fetch: retrying in 0 s, because the failure may be temporary",
        "demo: fetch (attempt 2) …",
        "demo: fetch (attempt 2): 2 of 9 attempts",
        "demo: fetch (attempt 2): done",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_s", "reason"), [(1.0, "stopped after 1 s.*its budget"), (-1.0, "not started, because the search's budget")]
)
def test_a_stage_is_stopped_at_its_deadline_and_does_not_start_after_it(
    left_s: float, reason: str, prefect_server: None, heard: Heard
) -> None:
    @flow(persist_result=False)
    def one_stage() -> None:
        with executed(heard):
            hang("demo", left_s, str(heard.folder / "store"))

    with pytest.raises(MeasurementError, match=reason):
        one_stage()


def test_a_failure_that_lasts_ends_the_stage_at_once(prefect_server: None, site: Site, heard: Heard) -> None:
    site.statuses = [404]
    with pytest.raises(InputError, match="404"):
        fetched(site, heard)
    assert len(site.asked) == 1


@pytest.mark.slow
def test_a_cluster_tries_again_and_hands_over_whether_an_error_may_pass(
    prefect_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prefect_dask", reason="the dask extra is not installed")
    monkeypatch.setenv("NIGHTQUANT_RETRY_WAIT_S", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    passing, lasting = tmp_path / "passing", tmp_path / "lasting"
    passing.mkdir()
    lasting.mkdir()

    @flow(persist_result=False, task_runner=make_task_runner(Settings(task_runner="dask", workers=1)))
    def two_stages() -> tuple[object, object]:
        futures = [
            count.submit("demo", str(folder), refused, str(tmp_path / "store"))
            for folder, refused in ((passing, 2), (lasting, 99))
        ]
        first, second = (future.result(raise_on_failure=False) for future in futures)
        return first, second

    first, second = two_stages()
    assert first == 3
    assert isinstance(second, InputError)
    assert str(second) == "It is away at attempt 4."
    assert second.transient


@pytest.mark.parametrize(
    ("fault", "attempts"), [("503 Slow Down: InternalError", 2), ("403 Forbidden: AccessDenied", 1)]
)
def test_rows_reach_an_object_store_that_failed_once_and_are_there_once(
    fault: str,
    attempts: int,
    prefect_server: None,
    s3_store: str,  # noqa: F811
    heard: Heard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    @flow(persist_result=False)
    def recording() -> None:
        with executed(heard), answering(fault):
            steps.record(RUN, {"measurements": [measurement(RUN.run_id, RUN.night)]}, s3_store)

    if attempts == 1:
        with pytest.raises(StoreError, match="Forbidden"):
            recording()
        assert heard.lines == []
    else:
        recording()
        assert heard.lines == [f"record {RUN.run_id}: retrying in 0 s, because the failure may be temporary"]
        assert run_query(s3_store, "FROM measurements").num_rows == 1
