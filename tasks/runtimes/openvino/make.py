"""Quantize an exported model with NNCF for OpenVINO, and determine which modules were quantized."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino

from tasks.environment.machine import this_machine
from tasks.quantize.engine import computes_bfloat16, require_bfloat16
from tasks.quantize.source import ModelSource, batches_of, refusing
from tasks.quantize.spec import EVERY, Calibration, Spec
from tasks.runtimes.exported import ExportedMaker, module_of
from tasks.runtimes.openvino.open import DIGEST, MODEL, PRECISION, WEIGHTS, OpenVinoOpener, signal_stack_kept

# OpenVINO's objects lack type hints, so nodes are typed as Any.
Node = Any

_PRODUCTS = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul", "LSTMSequence", "LSTMCell", "GRUSequence",
     "GRUCell", "RNNSequence", "Gather"}
)  # fmt: skip
_BY_TYPE = {"Linear": {"MatMul"}, "LSTM": {"LSTMSequence", "LSTMCell"}, "GRU": {"GRUSequence", "GRUCell"}}
# Operations between the softmax and the product of attention; masked rows select zeros instead of NaN.
_WITHIN_ATTENTION = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Convert", "Select"})
_NO_OPERATIONS = frozenset({"Parameter", "Constant", "Result"})
# Operations that are allowed between a constant and the operation that uses the constant as weights.
_BETWEEN = frozenset(
    {"Convert", "Subtract", "Multiply", "Reshape", "FakeQuantize", "Transpose", "Squeeze", "Unsqueeze", "Concat",
     "Split"}
)  # fmt: skip
_FURTHEST = 4  # maximum number of operations to examine when looking for a module's path
_ESTIMATORS = {"min-max": "MINMAX", "moving-average": "MEAN_MINMAX", "histogram": "MEAN_QUANTILE"}


class OpenVinoMaker(ExportedMaker):
    """A maker that quantizes the exported model with NNCF and writes the IR."""

    runtime = "openvino"
    opener = OpenVinoOpener
    tools = "NNCF"
    left_float = "NNCF left this {type} in float"

    def environment(self) -> dict[str, object]:
        """Return whether the processor has VNNI instructions, and whether it has bfloat16 instructions."""
        return {"vnni": this_machine().has_vnni, "bfloat16": computes_bfloat16()}

    def quantize(
        self, exported: Path, folder: Path, spec: Spec, excluded: frozenset[str], source: ModelSource
    ) -> tuple[str, ...]:
        """Quantize and save a model; raise `UnavailableError` if required bfloat16 instructions are missing."""
        with refusing("OpenVINO cannot read the exported model", "Remove the openvino runtime from the recipes."):
            model = openvino.Core().read_model(exported)
        if spec.calibration is not None:
            model = _calibrate(model, spec, spec.calibration, excluded, source)
        elif spec.layers and spec.training is None:
            model = _compress(model, frozenset(spec.layers), excluded)
        elif spec.arithmetic == "bfloat16":
            require_bfloat16(spec.name)
        # Float operators of a quantized model may compute in bfloat16; the operators of a float32 model must not.
        is_float = not (spec.layers or spec.arithmetic == "bfloat16") or not computes_bfloat16()
        model.set_rt_info("f32" if is_float else "bf16", PRECISION)
        openvino.save_model(model, folder / MODEL, compress_to_fp16=False)
        # OpenVINO's model cache finds compiled models by the XML alone, so the XML must change with the weights.
        model.set_rt_info(hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(), DIGEST)
        openvino.save_model(model, folder / MODEL, compress_to_fp16=False)
        return ()

    def products(self, folder: Path) -> Iterator[tuple[str, bool]]:
        """Yield the module path of each IR operation that has weights, and whether these weights are int8."""
        for node in _products(openvino.Core().read_model(folder / MODEL)):
            yield _module(node), any(constant.get_element_type().size == 1 for constant in _weights(node))


def _compress(model: Node, layers: frozenset[str], excluded: frozenset[str]) -> Node:
    """Quantize weights to int8 with one scale per channel; kernels may round activations to int8 at run time."""
    nncf = _nncf()
    types = {kind for name in layers for kind in _BY_TYPE.get(name, {"Gather"})}
    ignored = [
        node.get_friendly_name()
        for node in _products(model)
        if node.get_type_name() not in types or _module(node) in excluded
    ]
    scope = nncf.IgnoredScope(names=ignored, validate=False)
    with signal_stack_kept():
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM, ignored_scope=scope)


def _calibrate(
    model: Node, spec: Spec, calibration: Calibration, excluded: frozenset[str], source: ModelSource
) -> Node:
    nncf = _nncf()
    parameters, ranges = nncf.quantization.advanced_parameters, nncf.quantization.range_estimator
    data = [[tensor.numpy() for tensor in inputs] for inputs in batches_of(source, calibration)]
    estimator = getattr(ranges.RangeEstimatorParametersSet, _ESTIMATORS[calibration.observer])
    advanced = parameters.AdvancedQuantizationParameters(
        # Without VNNI, 16-bit sums of products saturate unless weights are limited to seven bits. By default, NNCF
        # limits only the weights of the first layer, even if the processor has VNNI.
        overflow_fix=None if this_machine().has_vnni else parameters.OverflowFix.ENABLE,
        activations_range_estimator_params=estimator,
        weights_quantization_params=parameters.QuantizationParameters(
            per_channel=spec.layers[EVERY].granularity == "channel"
        ),
    )
    operations = (node for node in model.get_ordered_ops() if node.get_type_name() not in _NO_OPERATIONS)
    names = [node.get_friendly_name() for node in operations if _module(node) in excluded]
    with signal_stack_kept():
        return nncf.quantize(
            model,
            nncf.Dataset(data),
            subset_size=len(data),
            # The scheme for transformers keeps attention precise, and scales activations with outliers (SmoothQuant).
            model_type=nncf.ModelType.TRANSFORMER if _has_attention(model) else None,
            ignored_scope=nncf.IgnoredScope(names=names, validate=False),
            advanced_parameters=advanced,
        )


def _nncf() -> Any:
    # Turn off NNCF's telemetry, because nightquant does not send usage data.
    os.environ.setdefault("NNCF_CI", "1")
    import nncf  # importing NNCF takes seconds, and candidates already in the store do not need NNCF

    nncf.set_log_level(logging.ERROR)
    return nncf


def _has_attention(model: Node) -> bool:
    """Return whether a softmax, possibly masked or rearranged, is an operand of a matrix product."""
    pending = [node for node in model.get_ordered_ops() if node.get_type_name() == "Softmax"]
    while pending:
        for output in pending.pop().outputs():
            for consumer in (target.get_node() for target in output.get_target_inputs()):
                if consumer.get_type_name() == "MatMul":
                    return True
                if consumer.get_type_name() in _WITHIN_ATTENTION:
                    pending.append(consumer)
    return False


def _products(model: Node) -> list[Node]:
    """Return a model's operations that have weights."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() in _PRODUCTS and _weights(node)]


def _weights(node: Node) -> list[Node]:
    """Return an operation's int8 and float weights: constants that are only scaled or rearranged before use."""
    constants, pending = [], [value.get_source_output().get_node() for value in node.inputs()]
    while pending:
        producer = pending.pop()
        if producer.get_type_name() == "Constant":
            kind = producer.get_element_type()
            constants += (
                [producer] if kind.is_real() or kind.size == 1 else []
            )  # other constants are shapes and lengths
        elif producer.get_type_name() in _BETWEEN:
            pending.append(producer.input_value(0).get_node())
    return constants


def _module(node: Node) -> str:
    """Return the path of an operation's module; if the operation's name lacks a path, use the consumers' names."""
    for _ in range(_FURTHEST):
        if path := module_of(node.get_friendly_name()):
            return path
        consumers = [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]
        if not consumers:
            return ""
        node = consumers[0]
    return ""
