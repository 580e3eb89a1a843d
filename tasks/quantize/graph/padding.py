"""Padding by numbers: torch's quantized convolutions do not know the words "same" and "valid"."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.coverage import is_within


def pad_by_numbers(model: nn.Module, kept: Collection[str]) -> None:
    """Put numbers in the place of words in a model's convolutions.

    Raises
    ------
    QuantizationError
        A convolution pads its sides differently, and is not in one of the modules in `kept`, which stay float.
    """
    for path, module in model.named_modules():
        if not isinstance(module, _ConvNd) or not isinstance(module.padding, str):
            continue
        reaches = [reach * (size - 1) for size, reach in zip(module.kernel_size, module.dilation, strict=True)]
        if module.padding == "valid":
            module.padding = (0,) * len(reaches)
        elif not any(reach % 2 for reach in reaches):
            module.padding = tuple(reach // 2 for reach in reaches)
        elif not is_within(path, kept):
            # They pad both sides alike, which "same" does not for kernels of even size.
            raise QuantizationError(
                f'The convolution {path} has an even kernel and padding="same", for which there is no int8 kernel.',
                hint=f'Name "{path}" in exclude, or pad before it with nn.ZeroPad2d.',
            )
