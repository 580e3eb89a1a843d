"""Which hosts benchmarks go to."""

import pytest

from flows.placement import Host, Placement, choose, place_benchmarks, require_fingerprint, this_host
from flows.settings import Settings
from storage.errors import MeasurementError

FAST, SLOW = "a" * 64, "b" * 64
HOSTS = {
    "worker-1": Host("left", "boot-left", FAST),
    "worker-2": Host("left", "boot-left", FAST),
    "worker-3": Host("right", "boot-right", FAST),
    "worker-4": Host("old", "boot-old", SLOW),
}


def test_one_worker_of_every_host_that_fits_is_chosen():
    chosen = choose(HOSTS, FAST)
    assert sorted(HOSTS[spot].name for spot in chosen) == ["left", "right"]
    assert choose(HOSTS, SLOW) == ("worker-4",)


def test_without_a_wanted_fingerprint_every_host_is_as_good():
    assert sorted(HOSTS[spot].name for spot in choose(HOSTS, "")) == ["left", "old", "right"]


def test_where_no_host_fits_the_message_says_what_was_wanted_and_what_there_is():
    with pytest.raises(MeasurementError, match=f"fingerprint {'c' * 64}; left has {FAST}, old has {SLOW}, right has"):
        choose(HOSTS, "c" * 64)


def test_this_host_is_refused_only_where_another_fingerprint_is_wanted():
    require_fingerprint("")
    require_fingerprint(this_host().fingerprint)
    with pytest.raises(MeasurementError, match=f"fingerprint {SLOW}; .* has {this_host().fingerprint}"):
        require_fingerprint(SLOW)


def test_threads_and_processes_have_their_own_host_and_time_one_workload_after_the_other():
    for name in ("threads", "processes"):
        assert place_benchmarks(Settings(task_runner=name), None) == Placement()
    assert not Placement().ahead


def test_submissions_take_the_hosts_in_turns():
    entered = []

    class Spot:
        def __init__(self, name):
            entered.append(name)

        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    placement = Placement(("left", "right"), Spot, ahead=True)
    for index in range(3):
        with placement.at(index):
            pass
    assert entered == ["left", "right", "left"]
