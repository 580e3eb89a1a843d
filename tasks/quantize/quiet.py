"""Silence for warnings that torch gives at every use of what it has deprecated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = (
    r"(?s)torch\.quantize_per_tensor, torch\.quantize_per_channel and other quantized tensor creation functions.*",
    r"(?s).*torch\.ao\.quantization is deprecated.*",
    r"(?s)Please use quant_min and quant_max to specify the range for observers.*",
    # Said of onednn without VNNI at every use; the documentation says it once.
    r"(?s)Default qconfig of oneDNN backend with reduce_range of false.*",
    r"(?s).*`?torch\.jit\.\w+`? is (not supported|deprecated).*",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Run the block without torch's deprecation warnings about eager quantization and TorchScript."""
    with warnings.catch_warnings():
        for message in _NOISE:
            warnings.filterwarnings("ignore", message=message)
        yield
