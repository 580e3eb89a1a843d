"""Which hosts benchmarks go to."""

import os

import pytest

from flows.execution.task_runners import (
    choose,
    make_task_runner,
    place_benchmarks,
    require_fingerprint,
    this_host,
)
from flows.settings import Settings
from storage.errors import MeasurementError

FAST, SLOW = "a" * 64, "b" * 64
HOSTS = {"1": ("left", FAST), "2": ("left", FAST), "3": ("right", FAST), "4": ("old", SLOW)}


def test_every_worker_of_a_host_that_fits_is_chosen():
    assert choose(HOSTS, FAST) == ["1", "2", "3"]
    assert choose(HOSTS, SLOW) == ["4"]
    assert choose(HOSTS, "") == ["1", "2", "3", "4"]


@pytest.mark.slow
def test_where_no_host_fits_the_message_says_what_was_wanted_and_what_there_is():
    expected = rf"{'c' * 64}\. Available hosts: left \({FAST}\), old \({SLOW}\), right \({FAST}\)"
    with pytest.raises(MeasurementError, match=expected):
        choose(HOSTS, "c" * 64)


def test_this_host_is_refused_only_where_another_fingerprint_is_wanted():
    require_fingerprint("")
    require_fingerprint(this_host()[1])
    with pytest.raises(MeasurementError, match=rf"fingerprint {SLOW}\. .* \({this_host()[1]}\)"):
        require_fingerprint(SLOW)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.long
def test_another_worker_takes_the_benchmark_of_a_lost_one_and_work_that_loses_every_worker_fails(
    prefect_server, tmp_path
):
    pytest.importorskip("prefect_dask", reason="the dask extra is not installed")
    from dask import config
    from prefect import flow, task

    from flows.fan_out import settle

    settings = Settings(task_runner="dask", workers=2, fingerprint=this_host()[1])

    first = tmp_path / "first"

    @task
    def die_once():
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            return os.getpid()
        os._exit(7)

    @task
    def die():
        os._exit(7)

    @flow(task_runner=make_task_runner(settings))
    def cluster():
        with place_benchmarks(settings)():
            pinned = die_once.submit()
        with pytest.raises(MeasurementError, match="no host has the fingerprint bbbb"):
            place_benchmarks(settings.model_copy(update={"fingerprint": SLOW}))
        return settle(pinned, "benchmark"), settle(die.submit(), "evaluate")

    with config.set({"distributed.scheduler.allowed-failures": 1}):
        process, failure = cluster()
    assert first.exists()
    assert isinstance(process, int)
    assert process != os.getpid()
    assert failure.stage == "evaluate"
    assert failure.error.startswith("The worker was lost: ")
