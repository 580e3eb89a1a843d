"""The quantized engine is one setting for the process: it is restored, shared, and waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.quantize.engine import OnEngine, bind_engine, quantized_engine

SUPPORTED = [name for name in torch.backends.quantized.supported_engines if name != "none"]


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    before = torch.backends.quantized.engine
    yield
    assert torch.backends.quantized.engine == before


class TellEngine(nn.Module):
    def forward(self, given: Tensor) -> tuple[Tensor, str]:
        return given, torch.backends.quantized.engine


@pytest.mark.parametrize("name", SUPPORTED)
def test_it_is_set_within_and_restored_after_an_error_too(name: str) -> None:
    def fail() -> None:
        with quantized_engine(name):
            assert torch.backends.quantized.engine == name
            raise ValueError(name)

    with pytest.raises(ValueError, match=name):
        fail()


def test_an_unknown_engine_is_refused_with_those_that_are_supported() -> None:
    with pytest.raises(QuantizationError, match=SUPPORTED[-1]), quantized_engine("abacus"):
        pass


def test_blocks_of_one_thread_nest() -> None:
    with quantized_engine("qnnpack"):
        with quantized_engine("onednn"):
            assert torch.backends.quantized.engine == "onednn"
        assert torch.backends.quantized.engine == "qnnpack"


def test_threads_share_one_engine_and_wait_for_another() -> None:
    both = threading.Barrier(2, timeout=60)
    released = threading.Event()
    seen: list[str] = []

    def same_engine() -> None:
        with quantized_engine("onednn"):
            both.wait()

    def other_engine() -> None:
        with quantized_engine("qnnpack"):
            seen.append("released" if released.is_set() else "too early")

    with quantized_engine("onednn"):
        threads = [threading.Thread(target=target) for target in (same_engine, other_engine)]
        for thread in threads:
            thread.start()
        both.wait()
        threads[0].join(60)
        assert torch.backends.quantized.engine == "onednn"
        released.set()
    threads[1].join(60)
    assert seen == ["released"]


def test_a_static_model_is_bound_where_only_one_of_the_engines_is_qnnpack() -> None:
    model = TellEngine()
    with quantized_engine("x86"):
        assert bind_engine(model, "onednn") is model
        bound = bind_engine(model, "qnnpack")
        assert isinstance(bound, OnEngine)
        assert bound(torch.zeros(1))[1] == "qnnpack"
        assert torch.backends.quantized.engine == "x86"
