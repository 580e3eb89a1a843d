"""What stays float whatever a recipe asks for, because torch's int8 kernels for it cannot be trusted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn import functional

# Of transposed convolutions, fbgemm's kernels write outside their memory where kernel and stride are 2 (the usual
# upsampling), and onednn's compute garbage where channels in and out differ: `python -m benchmarks.transposed`.
MODULES: frozenset[type[nn.Module]] = frozenset({nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d})
FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d}
)


def reason(type_name: str) -> str:
    """Why a module of the type of that name stays float; "" where nothing is wrong with its kernels."""
    if type_name in {kind.__name__ for kind in MODULES}:
        return f"torch's quantized kernels for {type_name} are wrong for some shapes"
    return ""
