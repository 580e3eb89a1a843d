import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from flows.execution.signals import Terminated
from flows.fan_out import wait_for


class Lost:
    """A future whose stage cannot be waited for."""

    def __init__(self, error):
        self.error = error

    def wait(self):
        raise self.error


def replaced(cause):
    """What CPython makes of an exception that C code did not expect."""
    error = SystemError("returned a result with an exception set")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "interruption", [KeyboardInterrupt(), Terminated(), TerminationSignal(signal=signal.SIGTERM)], ids=repr
)
def test_an_interruption_that_was_replaced_on_its_way_still_stops_the_night(interruption):
    with pytest.raises(type(interruption)) as stopped:
        wait_for(Lost(replaced(interruption)), "quantize")
    assert stopped.value is interruption


def test_a_worker_that_is_lost_fails_its_stage_alone():
    failure = wait_for(Lost(replaced(ValueError("odd"))), "quantize")
    assert failure.stage == "quantize"
    assert "The worker was lost" in failure.error


SIGTERM_IN_NATIVE_CODE = """
import signal

import pytest
from prefect.exceptions import TerminationSignal

from flows.execution.signals import sigterm_as_interrupt
from tests.flows.execution.test_signals import replaced

def native_code():
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt as stop:
        raise replaced(stop)


with pytest.raises(TerminationSignal) as stopped, sigterm_as_interrupt():
    native_code()
assert stopped.value.signal == signal.SIGTERM
signal.raise_signal(signal.SIGTERM)  # a service manager's, after the worker's
"""


@pytest.mark.slow
def test_sigterm_in_a_flow_passes_native_code_and_leaves_as_prefects_own_once():
    """In a process of its own: in one of many tests others may have taken the signal, and it would end them all."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", SIGTERM_IN_NATIVE_CODE], env=environment, check=True)
