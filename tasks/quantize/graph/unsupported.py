"""What stays float whatever a recipe asks for, because torch's int8 kernels for it cannot be trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn import functional

_TRANSPOSED = "torch's quantized kernels for it are wrong for some shapes"
# Of transposed convolutions, fbgemm's kernels write outside their memory where kernel and stride are 2 (the usual
# upsampling), and onednn's compute garbage where channels in and out differ: `python -m benchmarks.transposed`.
# The quantized PReLU rounds negative slopes to 0, takes no slope per channel, and keeps its weight and range outside of
# the state dict.
MODULES: Mapping[type[nn.Module], str] = {
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.PReLU: "torch's quantized PReLU loses negative slopes and cannot be saved",
}
FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d}
)


def reason(type_name: str) -> str:
    """Why a module of the type of that name stays float; "" where nothing is wrong with its kernels."""
    return next((why for kind, why in MODULES.items() if kind.__name__ == type_name), "")
