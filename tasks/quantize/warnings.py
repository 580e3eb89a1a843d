"""torch's warnings about what it has deprecated, given at every use of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

_DEPRECATIONS = (
    r"(?s)torch\.quantize_per_tensor, torch\.quantize_per_channel and other quantized tensor creation functions.*",
    r"(?s).*torch\.ao\.quantization is deprecated.*",
    r"(?s)Please use quant_min and quant_max to specify the range for observers.*",
    # Given for onednn without VNNI at every use; docs/vision.md says it once.
    r"(?s)Default qconfig of oneDNN backend with reduce_range of false.*",
    r"(?s).*`?torch\.jit\.\w+`? is (not supported|deprecated).*",
)


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Run the block without torch's deprecation warnings; a stage does so from one thread at a time."""
    with warnings.catch_warnings():
        for message in _DEPRECATIONS:
            warnings.filterwarnings("ignore", message=message)
        _use_up_the_one_for_tensors()
        yield


@cache
def _use_up_the_one_for_tensors() -> None:
    # torch gives this one once in a process: past Python's filters where TorchScript is opened, through them here.
    torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.qint8)
