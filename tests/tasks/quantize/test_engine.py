"""The quantized engine is one setting for the process: it is restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from storage.errors import QuantizationError
from tasks.quantize.engine import quantized_engine

SUPPORTED = [name for name in torch.backends.quantized.supported_engines if name != "none"]


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    before = torch.backends.quantized.engine
    yield
    assert torch.backends.quantized.engine == before


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


def test_blocks_nest() -> None:
    with quantized_engine("qnnpack"):
        with quantized_engine("onednn"):
            assert torch.backends.quantized.engine == "onednn"
        assert torch.backends.quantized.engine == "qnnpack"
