"""Models of which only the names, shapes and classes are wanted, not the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def build_blank(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model without memory for its weights, or where it cannot be built so, on the CPU.

    Parameters
    ----------
    build
        Builds the model on torch's default device. The global generator is left as it was.
    """
    # On the meta device the model has shapes and no memory.
    try:
        with torch.device("meta"):
            return build()
    except Exception:  # noqa: BLE001 - whatever it is, a build on the CPU meets it again unless meta was the reason
        # A constructor may ask for a tensor's values: rates of stochastic depth by torch.linspace(…).tolist().
        with torch.random.fork_rng(devices=[]):
            return build()
