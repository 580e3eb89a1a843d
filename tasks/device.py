"""Where training runs."""

from __future__ import annotations

import torch


def training_device() -> torch.device:
    """CUDA where there is one, the CPU otherwise; quantized models are always evaluated and timed on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
