"""Quantizing an exported model with NNCF for OpenVINO, and reading from the result which modules became int8."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import openvino

from storage.errors import QuantizationError
from tasks.machine import this_machine
from tasks.quantize.methods.cast import CastRecipe, computes_bfloat16, require_bfloat16
from tasks.quantize.methods.dynamic import DynamicRecipe, named_types
from tasks.quantize.methods.static import GraphRecipe, StaticRecipe
from tasks.runtimes.onnx_model import folded_into, module_of
from tasks.runtimes.openvino import PRECISION
from tasks.runtimes.signal_stack import signal_stack_kept
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from numpy import generic
    from numpy.typing import NDArray

    from tasks.quantize.source import ModelSource
    from tasks.refs import ModuleCoverage

# OpenVINO's objects have no types: Any.
Node = Any

_PRODUCTS = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul", "LSTMSequence", "LSTMCell", "GRUSequence",
     "GRUCell", "RNNSequence", "Gather"}
)  # fmt: skip
_BY_TYPE = {"Linear": {"MatMul"}, "LSTM": {"LSTMSequence", "LSTMCell"}, "GRU": {"GRUSequence", "GRUCell"}}
# What may lie between an int8 constant and the product that it goes into.
_BETWEEN = frozenset(
    {
        "Convert",
        "Subtract",
        "Multiply",
        "Reshape",
        "FakeQuantize",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Concat",
        "Split",
    }
)
_FURTHEST = 4  # operations between an LSTM and what still has its module's name
_ESTIMATORS = {"min-max": "MINMAX", "moving-average": "MEAN_MINMAX", "histogram": "MEAN_QUANTILE"}


def quantize(
    exported: Path, target: Path, recipe: Recipe, excluded: frozenset[str], source: ModelSource
) -> Callable[[ModuleCoverage], str]:
    """Carry a recipe out on an exported file and save the IR; returns why a module stayed float, "" where it did not.

    Raises
    ------
    QuantizationError
        OpenVINO cannot read the model, or there is nothing to quantize or to calibrate with.
    UnavailableError
        The processor has no instructions for bfloat16.
    """
    try:
        model = openvino.Core().read_model(exported)
    except RuntimeError as error:
        raise QuantizationError(
            f"OpenVINO cannot read the exported model: {str(error).splitlines()[-1]}",
            hint="Take the runtime out of this workload's recipes.",
        ) from error
    products = {_module(node) for node in _products(model)}
    named: frozenset[str] | None = None
    if isinstance(recipe, DynamicRecipe):
        named = named_types(recipe)
        model = _compress(model, named, excluded)
    elif isinstance(recipe, StaticRecipe):
        model = _calibrate(model, recipe, excluded, source)
    elif isinstance(recipe, CastRecipe):
        require_bfloat16(recipe)
    is_float = recipe.method == "none" or not computes_bfloat16()
    model.set_rt_info("f32" if is_float else "bf16", PRECISION)
    openvino.save_model(model, target, compress_to_fp16=False)
    int8, folded = int8_modules(target), folded_into(exported)
    if isinstance(recipe, DynamicRecipe | GraphRecipe) and not int8:
        raise QuantizationError(
            f'The recipe "{recipe.name}" quantizes nothing of the model.',
            hint="NNCF has no int8 form for what it names: take the runtime out of the recipe.",
        )

    def why_float(leaf: ModuleCoverage) -> str:
        if not isinstance(recipe, DynamicRecipe | GraphRecipe):
            return "a float recipe" if recipe.method == "none" else "a cast is no quantization"
        head = folded.get(leaf.module, leaf.module)
        if head in int8:
            return ""
        if not excluded.isdisjoint((leaf.module, head)):
            return "excluded by the recipe"
        if head not in products:
            return ""
        unnamed = named is not None and leaf.type not in named
        return f"the recipe does not name the type {leaf.type}" if unnamed else f"NNCF left this {leaf.type} float"

    return why_float


def int8_modules(path: Path) -> frozenset[str]:
    """Paths of the modules whose products all have int8 weights in a saved IR."""
    quantized: set[str] = set()
    floats: set[str] = set()
    for node in _products(openvino.Core().read_model(path)):
        (quantized if _has_int8_weights(node) else floats).add(_module(node))
    return frozenset(quantized - floats)


def _compress(model: Node, named: frozenset[str], excluded: frozenset[str]) -> Node:
    """int8 weights with a scale a channel; products stay float, or are quantized as OpenVINO's kernels like."""
    nncf = _nncf()
    types = {kind for name in named for kind in _BY_TYPE.get(name, {"Gather"})}
    ignored = [
        node.get_friendly_name()
        for node in _products(model)
        if node.get_type_name() not in types or _module(node) in excluded
    ]
    scope = nncf.IgnoredScope(names=ignored, validate=False)
    with signal_stack_kept():
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM, ignored_scope=scope)


def _calibrate(model: Node, recipe: StaticRecipe, excluded: frozenset[str], source: ModelSource) -> Node:
    batches = islice(source.calibration_batches(recipe.calibration_batch_size), recipe.calibration_batches)
    data: list[list[NDArray[generic]]] = []
    for number, inputs in enumerate(batches, start=1):
        data.append([tensor.numpy() for tensor in inputs])
        source.workspace.progress(number, recipe.calibration_batches, "calibration batches")
    if not data:
        raise QuantizationError(
            f'The data set of workload "{source.name}" has no calibration samples.',
            hint="Set data.calibration above 0, or use a data set with more training samples.",
        )
    nncf = _nncf()
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        OverflowFix,
        QuantizationParameters,
    )
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    estimator = getattr(RangeEstimatorParametersSet, _ESTIMATORS[recipe.activation_observer])
    advanced = AdvancedQuantizationParameters(
        # Without VNNI, 16-bit sums of products saturate unless weights keep one bit free. Left alone, NNCF keeps it
        # free in the first layer only, and on every processor.
        overflow_fix=None if this_machine().has_vnni else OverflowFix.ENABLE,
        activations_range_estimator_params=estimator,
        weights_quantization_params=QuantizationParameters(per_channel=recipe.weights == "per-channel"),
    )
    names = [n.get_friendly_name() for n in _products(model) if _module(n) in excluded]
    with signal_stack_kept():
        return nncf.quantize(
            model,
            nncf.Dataset(data),
            subset_size=len(data),
            ignored_scope=nncf.IgnoredScope(names=names, validate=False),
            advanced_parameters=advanced,
        )


def _nncf() -> ModuleType:
    # A night tells nobody that it ran; this is the variable by which NNCF's telemetry stays off.
    os.environ.setdefault("NNCF_CI", "1")
    import nncf

    nncf.set_log_level(logging.ERROR)
    module: ModuleType = nncf
    return module


def _products(model: Node) -> list[Node]:
    """The operations of a model that weights go into."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() in _PRODUCTS and _weights(node)]


def _weights(node: Node) -> list[Node]:
    """The constants, int8 or floating-point, that reach a product by nothing but scaling and rearranging."""
    found, open_ends = [], [value.get_source_output().get_node() for value in node.inputs()]
    while open_ends:
        end = open_ends.pop()
        if end.get_type_name() == "Constant":
            kind = end.get_element_type()
            found += [end] if kind.is_real() or kind.size == 1 else []  # others are shapes and lengths
        elif end.get_type_name() in _BETWEEN:
            open_ends.append(end.input_value(0).get_node())
    return found


def _has_int8_weights(node: Node) -> bool:
    return any(constant.get_element_type().size == 1 for constant in _weights(node))


def _module(node: Node) -> str:
    """Path of the module that an operation comes from; one that has lost its name goes by what it feeds."""
    for _ in range(_FURTHEST):
        if path := module_of(node.get_friendly_name()):
            return path
        fed = [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]
        if not fed:
            return ""
        node = fed[0]
    return ""
