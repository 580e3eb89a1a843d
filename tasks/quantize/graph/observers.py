"""Observers for a recipe, and the module types that always stay in float.

The engine, not the recipe, determines whether activations use 7 or 8 bits (``reduce_range``). On processors without
VNNI, the ``x86``, ``fbgemm`` and ``onednn`` engines multiply with ``vpmaddubsw``, whose 16-bit sums saturate if
activations use 8 bits. PyTorch uses 7 bits for ``x86`` and ``fbgemm`` on every processor, but 8 bits for ``onednn``.
Without VNNI, nightquant uses 7 bits for ``onednn`` as well.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.ao import quantization
from torch.ao.quantization import QConfig, QConfigMapping
from torch.ao.quantization.observer import UniformQuantizationObserverBase
from torch.nn import functional

from tasks.quantize.engine import saturates
from tasks.quantize.spec import EVERY, Spec

_ACTIVATION_OBSERVERS: dict[str, type[UniformQuantizationObserverBase]] = {
    "min-max": quantization.MinMaxObserver,
    "moving-average": quantization.MovingAverageMinMaxObserver,
    "histogram": quantization.HistogramObserver,
}
_WEIGHT_OBSERVERS = {
    "channel": quantization.default_per_channel_weight_observer,
    "tensor": quantization.default_weight_observer,
}
_WEIGHT_FAKE_QUANTS = {
    "channel": quantization.default_fused_per_channel_wt_fake_quant,
    "tensor": quantization.default_fused_wt_fake_quant,
}

_TRANSPOSED = "torch's quantized kernels for transposed convolutions are wrong for some shapes"
# Modules of these types always stay in float, because torch's int8 kernels for these types are faulty. For transposed
# convolutions with a kernel size and stride of 2 (the usual upsampling), fbgemm's kernels write outside their buffers.
# The ``onednn`` kernels for transposed convolutions return wrong results if the numbers of input and output channels
# differ. The quantized PReLU rounds negative slopes to 0, and supports only one slope for all channels. The
# state dict of a quantized PReLU lacks the weight and the range.
UNSUPPORTED: dict[type[nn.Module], str] = {
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.PReLU: "torch's quantized PReLU loses negative slopes and cannot be saved",
    nn.ELU: "torch's quantized ELU cannot be saved",
}
# Functions stay in float as well, because torch cannot fuse them or load their packed weights.
_UNSUPPORTED_FUNCTIONS = (
    functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
    functional.conv1d, functional.conv2d, functional.conv3d, functional.linear,
)  # fmt: skip


def reduces_range(engine: str | None) -> bool:
    """Return whether activations for an engine use only 7 of their 8 bits on this processor."""
    if engine is None:
        return False
    default = quantization.get_default_qconfig(engine)  # type: ignore[no-untyped-call]
    return bool(default.activation().reduce_range) or saturates(engine)


def qconfig_for(spec: Spec) -> QConfig:
    """Return a `QConfig` for a spec's engine, with observers for calibration or fake-quantize modules for training."""
    reduced, granularity = {"reduce_range": reduces_range(spec.engine)}, spec.layers[EVERY].granularity
    if spec.calibration is not None:
        activation = _ACTIVATION_OBSERVERS[spec.calibration.observer].with_args(**reduced)
        weight = _WEIGHT_OBSERVERS[granularity]
    else:
        default = quantization.get_default_qat_qconfig(spec.engine)  # type: ignore[no-untyped-call]
        activation, weight = default.activation.with_args(**reduced), _WEIGHT_FAKE_QUANTS[granularity]
    return QConfig(activation=activation, weight=weight)  # type: ignore[no-untyped-call]


def mapping_for(spec: Spec) -> QConfigMapping:
    """Return the `QConfigMapping` for FX graph mode: the engine's default mapping with the spec's observers."""
    qconfig = qconfig_for(spec)
    static = spec.training is None
    make_default = quantization.get_default_qconfig_mapping if static else quantization.get_default_qat_qconfig_mapping
    mapping = make_default(spec.engine)
    default = mapping.global_qconfig
    for kind, type_qconfig in mapping.object_type_qconfigs.items():
        if type_qconfig == default:
            mapping.set_object_type(kind, qconfig)
    untrusted: tuple[Callable[..., object], ...] = (*UNSUPPORTED, *_UNSUPPORTED_FUNCTIONS)
    for operation in untrusted:
        mapping.set_object_type(operation, None)
    return mapping.set_global(qconfig)
