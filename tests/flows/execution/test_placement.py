"""Which hosts benchmarks go to."""

import os

import pytest

from flows.execution.task_runners import (
    Host,
    choose,
    make_task_runner,
    place_benchmarks,
    require_fingerprint,
    this_host,
)
from flows.settings import Settings
from storage.errors import MeasurementError

FAST, SLOW = "a" * 64, "b" * 64
HOSTS = [
    (Host("left", "boot-left", FAST), "left 1"),
    (Host("left", "boot-left", FAST), "left 2"),
    (Host("right", "boot-right", FAST), "right 1"),
    (Host("old", "boot-old", SLOW), "old 1"),
]


def test_one_worker_of_every_host_that_fits_is_chosen():
    assert sorted(spot.split()[0] for spot in choose(HOSTS, FAST)) == ["left", "right"]
    assert choose(HOSTS, SLOW) == ("old 1",)


def test_without_a_wanted_fingerprint_every_host_is_as_good():
    assert sorted(spot.split()[0] for spot in choose(HOSTS, "")) == ["left", "old", "right"]


def test_where_no_host_fits_the_message_says_what_was_wanted_and_what_there_is():
    with pytest.raises(MeasurementError, match=f"fingerprint {'c' * 64}; left has {FAST}, old has {SLOW}, right has"):
        choose(HOSTS, "c" * 64)


def test_this_host_is_refused_only_where_another_fingerprint_is_wanted():
    require_fingerprint("")
    require_fingerprint(this_host().fingerprint)
    with pytest.raises(MeasurementError, match=f"fingerprint {SLOW}; .* has {this_host().fingerprint}"):
        require_fingerprint(SLOW)


def test_threads_and_processes_have_their_own_host_alone():
    for name in ("threads", "processes"):
        assert place_benchmarks(Settings(task_runner=name)) == ()


@pytest.mark.slow
@pytest.mark.server
def test_benchmarks_of_a_dask_cluster_go_to_one_worker_of_each_host_and_a_lost_worker_is_a_failure(prefect_server):
    pytest.importorskip("prefect_dask", reason="the dask extra is not installed")
    from dask import config
    from prefect import flow, task

    from flows.fan_out import settle

    settings = Settings(task_runner="dask", workers=2, fingerprint=this_host().fingerprint)

    @task
    def process():
        return os.getpid()

    @task
    def die():
        os._exit(7)

    @flow(task_runner=make_task_runner(settings))
    def cluster():
        pins = place_benchmarks(settings)
        pinned = []
        for index in range(6):
            with pins[index % len(pins)]():
                pinned.append(process.submit())
        with pytest.raises(MeasurementError, match="wanted on hosts of fingerprint bbbb"):
            place_benchmarks(settings.model_copy(update={"fingerprint": SLOW}))
        return len(pins), {settle(one, "benchmark") for one in pinned}, settle(die.submit(), "evaluate")

    with config.set({"distributed.scheduler.allowed-failures": 0}):
        hosts, processes, failure = cluster()
    assert hosts == 1
    assert len(processes) == 1
    assert os.getpid() not in processes
    assert failure.stage == "evaluate"
    assert failure.error.startswith("The worker was lost: ")
