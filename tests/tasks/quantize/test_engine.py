"""The quantized engine is restored afterwards; deprecation noise is silenced at its point of use, and nowhere else."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

from tasks.environment.libraries import quiet
from tasks.environment.machine import this_machine
from tasks.quantize.engine import quantized_engine, without_deprecations

SUPPORTED = [name for name in torch.backends.quantized.supported_engines if name != "none"]
NOISE = "torch.ao.quantization is deprecated and will be removed in 2.10."


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    before = torch.backends.quantized.engine
    yield
    assert torch.backends.quantized.engine == before


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.slow
def test_it_is_set_within_and_restored_after_an_error_too(name: str) -> None:
    def fail() -> None:
        with quantized_engine(name):
            assert torch.backends.quantized.engine == name
            raise ValueError(name)

    with pytest.raises(ValueError, match=name):
        fail()


@pytest.mark.skipif("avx2" not in this_machine().isa, reason="oneDNN has other kernels on this processor")
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
@pytest.mark.slow
def test_a_process_whose_products_saturate_is_recognized(limit: str) -> None:
    code = "from tasks.quantize.engine import saturates; print(saturates('onednn'), saturates('qnnpack'))"
    variables = os.environ | {"ONEDNN_MAX_CPU_ISA": limit}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_torch_is_silent_within_and_others_are_heard() -> None:
    with warnings.catch_warnings(record=True) as heard, without_deprecations():
        warnings.simplefilter("always", UserWarning)
        warnings.warn(NOISE, DeprecationWarning, stacklevel=1)
        torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
        warnings.warn("mine", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["mine"]


def test_noise_is_kept_away_and_comes_back_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        print("noise")  # noqa: T201
        warnings.warn("noise", stacklevel=1)
        logging.getLogger("anything").warning("noise")
    print("signal")  # noqa: T201
    assert capfd.readouterr() == ("signal\n", "")
    assert logging.getLogger("anything").isEnabledFor(logging.WARNING)
