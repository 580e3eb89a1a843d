"""Padding by numbers: torch's quantized convolutions do not know the words "same" and "valid"."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.coverage import is_within


def pad_by_numbers(model: nn.Module, kept: Collection[str]) -> None:
    """Put numbers in the place of a word in every convolution, except where modules in `kept` stay float.

    Raises
    ------
    QuantizationError
        A convolution pads its sides differently.
    """
    for path, module in model.named_modules():
        if isinstance(module, _ConvNd) and isinstance(module.padding, str):
            numbers = padding_as_numbers(module.padding, module.kernel_size, module.dilation)
            if numbers is not None:
                module.padding = numbers
            elif not is_within(path, kept):
                raise uneven_padding(path)


def padding_as_numbers(word: str, sizes: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...] | None:
    """What a word means for a kernel of these sizes; None if both sides of an axis are not padded alike."""
    reaches = [step * (size - 1) for size, step in zip(sizes, dilation, strict=True)]
    if word == "valid":
        return (0,) * len(reaches)
    return None if any(reach % 2 for reach in reaches) else tuple(reach // 2 for reach in reaches)


def uneven_padding(path: str) -> QuantizationError:
    """The refusal of a convolution with "same" and a kernel of even size."""
    return QuantizationError(
        f'The convolution {path} has an even kernel and padding="same", for which there is no int8 kernel.',
        hint=f'Name "{path}" in exclude, or pad before it with nn.ZeroPad2d.',
    )
