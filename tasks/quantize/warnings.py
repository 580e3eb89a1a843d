"""Silence for warnings that torch gives at every use of what it has deprecated."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch
from torch.jit._trace import TracerWarning

_NOISE = (
    r"(?s)torch\.quantize_per_tensor, torch\.quantize_per_channel and other quantized tensor creation functions.*",
    r"(?s).*torch\.ao\.quantization is deprecated.*",
    r"(?s)Please use quant_min and quant_max to specify the range for observers.*",
    # Said of onednn without VNNI at every use; docs/vision.md says it once.
    r"(?s)Default qconfig of oneDNN backend with reduce_range of false.*",
    r"(?s).*`?torch\.jit\.\w+`? is (not supported|deprecated).*",
)


class _Silence:
    """The warning filters, kept while anyone wants them.

    Filters are one list for the whole process. Were every thread to save and restore that list for itself, one thread's
    end would take another's filters away or bring its own back for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._filters = ExitStack()

    def begin(self) -> None:
        with self._lock:
            if self._wanted == 0:
                self._filters.enter_context(warnings.catch_warnings())
                for message in _NOISE:
                    warnings.filterwarnings("ignore", message=message)
                # Tracing passes by torch's own checks of shapes; a warning about the user's own code stays.
                warnings.filterwarnings("ignore", category=TracerWarning, module=r"torch\.")
            self._wanted += 1

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if self._wanted == 0:
                self._filters.close()


_SILENCE = _Silence()


@contextmanager
def quiet() -> Iterator[None]:
    """Run the block without torch's deprecation warnings about eager quantization and TorchScript."""
    _SILENCE.begin()
    try:
        _use_up_warning()
        yield
    finally:
        _SILENCE.end()


@cache
def _use_up_warning() -> None:
    # torch gives this one once in a process: past Python's filters where TorchScript is opened, through them here.
    torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.qint8)
