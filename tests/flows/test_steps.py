"""Stages that meet a network or a server that fails: tried again, or not, and what is heard of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect import flow

from flows import steps
from flows.execution.context import Execution, executing
from flows.reporter import Reporter
from flows.settings import Settings
from storage.errors import InputError, MeasurementError
from tests.flows.execution import worker_stages
from tests.storage.conftest import s3_endpoint, s3_store  # noqa: F401 - fixtures
from tests.storage.http_server import Site, serving

pytestmark = pytest.mark.server


class Heard(Reporter):
    """Notes what it hears, and leaves a file for each stage whose progress it has heard."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, list[str]()

    def started(self, label: str) -> None:
        self.lines.append(f"{label} …")

    def progressed(self, label: str, done: float, total: float, unit: str) -> None:
        self.lines.append(f"{label}: {done} of {total} {unit}")
        (self.folder / f"{done}").touch()

    def finished(self, label: str, error: str = "") -> None:
        self.lines.append(f"{label}: {'failed' if error else 'done'}")

    def noted(self, text: str) -> None:
        self.lines.append(text)


@steps._stage("fetch", "{name}")
def fetch(place: steps.Place, name: str, url: str, folder: str) -> bytes:
    """Ask once for a file, in a worker, after telling of the attempt."""
    return steps._run(worker_stages.fetch, place, url, folder)


@steps._stage("hang", "{name}")
def hang(place: steps.Place, name: str) -> None:
    """Hang in a worker until a deadline."""
    steps._run(worker_stages.hang, place)


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
            return fetch(steps.Place(str(heard.folder / "store")), "demo", site.url, str(heard.folder))

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
            hang(steps.Place(str(heard.folder / "store"), deadline=time.time() + left_s), "demo")

    with pytest.raises(MeasurementError, match=reason):
        one_stage()


def test_a_failure_that_lasts_ends_the_stage_at_once(prefect_server: None, site: Site, heard: Heard) -> None:
    site.statuses = [404]
    with pytest.raises(InputError, match="404"):
        fetched(site, heard)
    assert len(site.asked) == 1
