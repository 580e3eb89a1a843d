"""Are torch's int8 kernels of transposed convolutions right? Signal-to-noise ratio against float, by engine and shape.

    python -m benchmarks.transposed

A kernel that is right loses what rounding to 8 bits costs: some 35 dB are left. 0 dB means that what it gives is as far
from the right numbers as zeros are. Each cell is the worst of three seeds.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional

ENGINES = ("x86", "onednn", "qnnpack")
# Channels in, channels out, kernel, stride.
SHAPES = ((8, 4, 2, 2), (8, 8, 2, 2), (64, 32, 2, 2), (8, 8, 3, 1), (16, 8, 3, 2), (8, 16, 4, 2))
SEEDS = 3


def quantized(values: Tensor, dtype: torch.dtype, levels: int, zero_point: int) -> Tensor:
    """`values` on a scale of one step for all, that uses `levels` steps on each side of zero."""
    return torch.quantize_per_tensor(values, float(values.abs().max()) / levels, zero_point, dtype)


def signal_to_noise_db(engine: str, shape: tuple[int, int, int, int], seed: int) -> float:
    """Compare the kernel's output on 2 × C × 6 × 6 values with what float makes of the same quantized values."""
    channels_in, channels_out, kernel, stride = shape
    torch.backends.quantized.engine = engine
    torch.manual_seed(seed)
    # 7 bits of activations: x86 without VNNI saturates with 8.
    images = quantized(torch.randn(2, channels_in, 6, 6), torch.quint8, 63, 64)
    weights = quantized(torch.randn(channels_in, channels_out, kernel, kernel) / channels_in, torch.qint8, 127, 0)
    right = functional.conv_transpose2d(images.dequantize(), weights.dequantize(), stride=stride)
    packed = torch.ops.quantized.conv_transpose2d_prepack(weights, None, [stride, stride], [0, 0], [0, 0], [1, 1], 1)
    scale = float(right.abs().max()) / 127
    given = torch.ops.quantized.conv_transpose2d(images, packed, scale, 128).dequantize()
    return float(10 * torch.log10(right.square().mean() / (right - given).square().mean()))


def main() -> None:
    """Print one line per shape."""
    warnings.filterwarnings("ignore", message=r"(?s).*quantized tensor creation functions.*")
    print(f"{'channels':>9}  {'kernel':>6}  {'stride':>6}" + "".join(f"{engine:>10}" for engine in ENGINES))
    for shape in SHAPES:
        channels_in, channels_out, kernel, stride = shape
        worst = [min(signal_to_noise_db(engine, shape, seed) for seed in range(SEEDS)) for engine in ENGINES]
        line = "".join(f"{ratio:7.1f} dB" for ratio in worst)
        print(f"{f'{channels_in}→{channels_out}':>9}  {f'{kernel}×{kernel}':>6}  {stride:>6}{line}")


if __name__ == "__main__":
    main()
