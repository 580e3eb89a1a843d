from __future__ import annotations

import threading
import time

import pytest
import torch

from storage.errors import UnavailableError
from tasks.outputs import intra_op_threads
from tasks.proof.instructions import Disassembler
from tasks.proof.sampler import Sampler


@pytest.fixture
def sampler():
    try:
        with Sampler() as found:
            yield found
    except UnavailableError as error:
        pytest.skip(error.message)


@pytest.mark.slow
def test_it_sees_what_runs_between_start_and_stop(sampler: Sampler) -> None:
    def multiply(seconds: float) -> None:
        left, right = torch.randn(256, 256), torch.randn(256, 256)
        until = time.thread_time() + seconds  # of a processor, however many others want it
        while time.thread_time() < until:
            left @ right

    with intra_op_threads(1):  # others would spin while they wait
        sampler.start()
        multiply(0.3)
        found = Disassembler().families(sampler.stop())
        multiply(0.05)
    assert found.total() > 100
    assert found["float"] > 0.3 * found.total()
    sampler.start()
    assert len(sampler.stop()) < 100


@pytest.mark.slow
def test_threads_that_start_later_are_seen(sampler: Sampler) -> None:
    sampler.start()
    product = torch.randn(400, 400)
    worker = threading.Thread(target=lambda: [product @ product for _ in range(200)])
    worker.start()
    worker.join()  # this thread sleeps
    assert Disassembler().families(sampler.stop())["float"] > 20


def test_a_system_that_forbids_it_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(UnavailableError, match="Linux on x86-64"):
        Sampler()
