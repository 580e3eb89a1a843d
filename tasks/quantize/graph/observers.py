"""Observers per engine: a recipe's choices laid over the defaults that PyTorch gives for its engine.

Whether activations use 7 or 8 of the 8 bits (``reduce_range``) is the engine's affair, not the recipe's: x86 and fbgemm
multiply with ``vpmaddubsw`` where the processor has no VNNI, whose 16-bit sums saturate unless one bit is kept free;
onednn and qnnpack use the whole range. So it is read from the engine's own default and never set here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.ao.quantization import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    QConfig,
    QConfigMapping,
    default_fused_per_channel_wt_fake_quant,
    default_fused_wt_fake_quant,
    default_per_channel_weight_observer,
    default_weight_observer,
    get_default_qat_qconfig,
    get_default_qat_qconfig_mapping,
    get_default_qconfig,
    get_default_qconfig_mapping,
)

from tasks.quantize.graph import unsupported as unsound
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import StaticRecipe

ACTIVATION_OBSERVERS: dict[str, Any] = {
    "min-max": MinMaxObserver,
    "moving-average": MovingAverageMinMaxObserver,
    "histogram": HistogramObserver,
}
WEIGHT_OBSERVERS: dict[str, Any] = {
    "per-channel": default_per_channel_weight_observer,
    "per-tensor": default_weight_observer,
}
WEIGHT_FAKE_QUANTS: dict[str, Any] = {
    "per-channel": default_fused_per_channel_wt_fake_quant,
    "per-tensor": default_fused_wt_fake_quant,
}


def qconfig_for(recipe: StaticRecipe | QatRecipe) -> QConfig:
    """Observers (static) or fake quantization (qat) for a recipe's engine."""
    if recipe.method == "qat":
        default = get_default_qat_qconfig(recipe.engine)  # type: ignore[no-untyped-call]
        return _qconfig(default.activation, WEIGHT_FAKE_QUANTS[recipe.weights])
    default = get_default_qconfig(recipe.engine)  # type: ignore[no-untyped-call]
    reduce_range = default.activation().reduce_range
    activation = ACTIVATION_OBSERVERS[recipe.activation_observer].with_args(reduce_range=reduce_range)
    return _qconfig(activation, WEIGHT_OBSERVERS[recipe.weights])


def mapping_for(recipe: StaticRecipe | QatRecipe) -> QConfigMapping:
    """What FX graph mode takes: the engine's default mapping with the recipe's observers in the default's place.

    Operators that PyTorch singles out (those with a fixed output range, layer norm, …) keep
    the treatment that they have there.
    """
    qconfig = qconfig_for(recipe)
    make = get_default_qat_qconfig_mapping if recipe.method == "qat" else get_default_qconfig_mapping
    mapping = make(recipe.engine)
    usual = mapping.global_qconfig
    for kind, given in mapping.object_type_qconfigs.items():
        if given is usual or given == usual:
            mapping.set_object_type(kind, qconfig)
    untrusted: tuple[Callable[..., Any], ...] = (*unsound.MODULES, *unsound.FUNCTIONS)
    for each in untrusted:
        mapping.set_object_type(each, None)
    return mapping.set_global(qconfig)


def _qconfig(activation: Any, weight: Any) -> QConfig:
    return QConfig(activation=activation, weight=weight)  # type: ignore[no-untyped-call]
