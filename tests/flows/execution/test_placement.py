"""Which hosts benchmarks go to."""

import pytest

from flows.execution.task_runners import (
    choose,
    require_fingerprint,
    this_host,
)
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
