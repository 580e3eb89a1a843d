"""Observers: those that a recipe asks for, the modules that get none, and the calibration data that they see.

Whether activations use 7 or 8 of the 8 bits (``reduce_range``) is the engine's affair, not the recipe's: x86 and fbgemm
multiply with ``vpmaddubsw`` where the processor has no VNNI, whose 16-bit sums saturate unless one bit is kept free;
onednn and qnnpack use the whole range. So it is read from PyTorch's default for the engine and never set here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.quantization import QConfig, QConfigMapping
from torch.ao.quantization.observer import UniformQuantizationObserverBase
from torch.nn import functional

from storage.errors import QuantizationError
from tasks.quantize.graph.smoke_test import refuse_non_finite
from tasks.quantize.methods.static import GraphRecipe, StaticRecipe

if TYPE_CHECKING:
    from tasks.job import Progress

_ACTIVATION_OBSERVERS: dict[str, type[UniformQuantizationObserverBase]] = {
    "min-max": quantization.MinMaxObserver,
    "moving-average": quantization.MovingAverageMinMaxObserver,
    "histogram": quantization.HistogramObserver,
}
_WEIGHT_OBSERVERS = {
    "per-channel": quantization.default_per_channel_weight_observer,
    "per-tensor": quantization.default_weight_observer,
}
_WEIGHT_FAKE_QUANTS = {
    "per-channel": quantization.default_fused_per_channel_wt_fake_quant,
    "per-tensor": quantization.default_fused_wt_fake_quant,
}

_TRANSPOSED = "torch's quantized kernels for it are wrong for some shapes"
# What stays float whatever a recipe asks for, because torch's int8 kernels for it cannot be trusted.
# Of transposed convolutions, fbgemm's kernels write outside their memory where kernel and stride are 2 (the usual
# upsampling), and onednn's compute garbage where channels in and out differ: `python -m benchmarks.transposed`.
# The quantized PReLU rounds negative slopes to 0, takes no slope per channel, and keeps its weight and range outside of
# the state dict.
UNSUPPORTED: dict[type[nn.Module], str] = {
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.PReLU: "torch's quantized PReLU loses negative slopes and cannot be saved",
}
_UNSUPPORTED_FUNCTIONS = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)


def why_unsupported(type_name: str) -> str:
    """Why modules of the type of that name stay float; "" where their kernels can be trusted."""
    return next((reason for kind, reason in UNSUPPORTED.items() if kind.__name__ == type_name), "")


def qconfig_for(recipe: GraphRecipe) -> QConfig:
    """Observers (static) or fake quantization (qat) for a recipe's engine."""
    if isinstance(recipe, StaticRecipe):
        default = quantization.get_default_qconfig(recipe.engine)  # type: ignore[no-untyped-call]
        observer = _ACTIVATION_OBSERVERS[recipe.activation_observer]
        activation = observer.with_args(reduce_range=default.activation().reduce_range)
        weight = _WEIGHT_OBSERVERS[recipe.weights]
    else:
        activation = quantization.get_default_qat_qconfig(recipe.engine).activation  # type: ignore[no-untyped-call]
        weight = _WEIGHT_FAKE_QUANTS[recipe.weights]
    return QConfig(activation=activation, weight=weight)  # type: ignore[no-untyped-call]


def mapping_for(recipe: GraphRecipe) -> QConfigMapping:
    """What FX graph mode takes: the engine's default mapping with the recipe's observers in the default's place.

    Operators that PyTorch singles out (those with a fixed output range, layer norm, …) keep the treatment that they
    have there.
    """
    qconfig = qconfig_for(recipe)
    static = isinstance(recipe, StaticRecipe)
    make_default = quantization.get_default_qconfig_mapping if static else quantization.get_default_qat_qconfig_mapping
    mapping = make_default(recipe.engine)
    usual = mapping.global_qconfig
    for kind, given in mapping.object_type_qconfigs.items():
        if given == usual:
            mapping.set_object_type(kind, qconfig)
    untrusted: tuple[Callable[..., object], ...] = (*UNSUPPORTED, *_UNSUPPORTED_FUNCTIONS)
    for operation in untrusted:
        mapping.set_object_type(operation, None)
    return mapping.set_global(qconfig)


def calibrate(
    prepared: nn.Module, batches: Iterable[tuple[Tensor, ...]], total: int, workload_name: str, progress: Progress
) -> None:
    """Run the first `total` batches of representative positional inputs, where there are as many, through a model.

    Raises
    ------
    QuantizationError
        There are no batches, or the model returns NaN or infinity for one.
    """
    number = 0
    with torch.no_grad():
        for number, inputs in enumerate(islice(batches, total), start=1):
            try:
                output = prepared(*inputs)
            except RuntimeError as error:
                # A histogram observer cannot bin what lies between NaN and NaN.
                if "is not finite" not in str(error):
                    raise
                raise QuantizationError(
                    f"An activation of the model is NaN or infinite in batch {number} of calibration.",
                    hint="Look at the float checkpoint and at the calibration samples.",
                ) from error
            refuse_non_finite(output, f"batch {number} of calibration")
            progress(number, total, "calibration batches")
    if not number:
        raise QuantizationError(
            f'The data set of workload "{workload_name}" has no calibration samples.',
            hint="Set data.calibration above 0, or use a data set with more training samples.",
        )
