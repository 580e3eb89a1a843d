"""The quantized engine: the library whose int8 kernels torch uses, one setting for the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from storage.errors import QuantizationError


@contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Run the block with the quantized engine `name`, then restore the one there was.

    Weights are packed in an engine's own layout, and some operators ask the setting when they run, so this must
    surround converting, loading and calling a model.

    Raises
    ------
    QuantizationError
        This build of torch has no such engine for this processor.
    """
    supported = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if name not in supported:
        raise QuantizationError(
            f'The quantized engine "{name}" is not supported here.',
            hint=f"Set the recipe's engine to one of: {', '.join(sorted(supported))}.",
        )
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


def instruction_set() -> dict[str, object]:
    """What of this processor may change how weights are quantized and packed."""
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vnni": bool(torch.cpu._is_vnni_supported()),
    }
