"""Deprecation noise is silenced at its point of use, and nowhere else."""

from __future__ import annotations

import warnings

import pytest
import torch

from tasks.quantize.warnings import without_deprecations

NOISE = "torch.ao.quantization is deprecated and will be removed in 2.10."


def test_torch_is_silent_within_and_others_are_heard() -> None:
    with warnings.catch_warnings(record=True) as heard, without_deprecations():
        warnings.simplefilter("always", UserWarning)
        warnings.warn(NOISE, DeprecationWarning, stacklevel=1)
        torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
        warnings.warn("mine", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["mine"]


def test_the_noise_is_heard_again_afterwards() -> None:
    with without_deprecations():
        pass
    with pytest.warns(DeprecationWarning, match="deprecated"):
        warnings.warn(NOISE, DeprecationWarning, stacklevel=1)
