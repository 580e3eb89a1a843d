"""What a stage computes with: the device that it trains on, and its intra-op threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def training_device() -> torch.device:
    """CUDA where there is one, the CPU otherwise; quantized models are always evaluated and timed on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Run the block with `count` intra-op threads, then restore the number there was."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
