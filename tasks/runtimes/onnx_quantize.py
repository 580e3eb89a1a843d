"""Quantizing an exported model with ONNX Runtime's tools, and reading from the result which modules became int8."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import create_calibrator
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quantize import quantize_dynamic
from onnxruntime.quantization.registry import QDQRegistry

from storage.errors import QuantizationError
from tasks.libraries import quiet
from tasks.machine import this_machine
from tasks.outputs import finite_outputs
from tasks.quantize.calibration import batches_of
from tasks.quantize.coverage import cover, excluded_modules, leaves_of
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import EVERY, Calibration, Spec
from tasks.refs import ModuleCoverage
from tasks.runtimes.base import CandidateFiles, Made, Maker
from tasks.runtimes.onnx_model import KIND, find_or_export, module_of, why_float
from tasks.runtimes.onnx_session import MODEL, OnnxOpener

# By the type of a torch module: the operators that it becomes, as far as there are dynamic int8 kernels for them.
DYNAMIC_OPERATORS = {"Linear": ("MatMul", "Gemm"), "LSTM": ("LSTM",), "Embedding": ("Gather",)}
# Operators that weights go into, and which of their inputs the weights are.
_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1, "LSTM": 1, "GRU": 1, "RNN": 1, "Gather": 0}
_INT8_OPERATORS = frozenset({"MatMulInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "ConvInteger"})
_INT8 = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8})
_PERCENTILE = 99.999
_DIGITS = "0123456789"


class OnnxMaker(Maker):
    """Exports a model and quantizes the file."""

    def environment(self) -> dict[str, object]:
        """Say whether activations need a bit of headroom on this processor."""
        return {"vnni": this_machine().has_vnni}

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or make the exported float or fine-tuned model."""
        return {KIND: find_or_export(source, spec).name}

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Quantize the exported model; the size is the file's."""
        target, model = folder / MODEL, source.float_model()
        exported, excluded = find_or_export(source, spec) / MODEL, excluded_modules(model, spec.recipe.exclude)
        with quiet():
            why = quantize(exported, target, spec, excluded, source)
        opened = OnnxOpener().open(CandidateFiles(folder, {}), 1)
        finite_outputs(opened, source.example_inputs, spec.recipe.name)
        return Made(size_bytes=target.stat().st_size, coverage=cover(leaves_of(model), why))


def quantize(
    exported: Path, target: Path, spec: Spec, excluded: frozenset[str], source: ModelSource
) -> Callable[[ModuleCoverage], str]:
    """Carry a spec out on an exported file; return why a module stayed float, "" if it did not.

    Raises
    ------
    QuantizationError
        There is nothing to quantize or to calibrate with, or the tools refuse the model.
    """
    proto = onnx.load(exported)
    with_products = {module_of(node.name) for node in proto.graph.node if node.op_type in _WEIGHTS}
    left_out = [node.name for node in proto.graph.node if module_of(node.name) in excluded]
    if spec.calibration is not None:
        _quantize_statically(exported, proto, target, spec, spec.calibration, left_out, source)
    elif spec.layers and spec.training is None:
        _quantize_dynamically(proto, target, spec, left_out)
    else:
        shutil.copyfile(exported, target)  # a fine-tuned model is int8 already
    int8 = int8_modules(target)
    if spec.layers and not int8:
        raise QuantizationError(
            f'The recipe "{spec.recipe.name}" quantizes nothing of the model.',
            hint="ONNX Runtime has no int8 kernels for what it names: take the runtime out of the recipe.",
        )
    return why_float(spec, exported, excluded, with_products, int8, "ONNX Runtime has no int8 kernel for this {type}")


def int8_modules(path: Path) -> frozenset[str]:
    """Paths of the modules whose products all have int8 weights in a quantized file."""
    graph = onnx.load(path).graph
    int8 = {tensor.name for tensor in graph.initializer if tensor.data_type in _INT8}
    int8 |= {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    quantized: set[str] = set()
    floats: set[str] = set()
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in int8:  # a Linear's weights, where it has several rows
            int8.update(node.output)
        elif node.op_type in _INT8_OPERATORS:
            quantized.add(module_of(node.name))
        elif (index := _WEIGHTS.get(node.op_type)) is not None:
            (quantized if node.input[index] in int8 else floats).add(module_of(node.name))
    return frozenset(quantized - floats)


def _quantize_dynamically(proto: onnx.ModelProto, target: Path, spec: Spec, left_out: list[str]) -> None:
    """Weights to int8, activations as they come: DynamicQuantizeLSTM and MatMulInteger; embeddings to 8 bits."""
    operators = [operator for kind in spec.layers for operator in DYNAMIC_OPERATORS.get(kind, ())]
    # The tool transposes a Gemm's weight where it is, and then meets the shape that the export noted of it.
    weights = {tensor.name for tensor in proto.graph.initializer}
    shapes = [info for info in proto.graph.value_info if info.name not in weights]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(shapes)
    quantize_dynamic(
        proto,
        target,
        op_types_to_quantize=operators,
        per_channel=any(layer.granularity == "channel" for kind, layer in spec.layers.items() if kind != "Embedding"),
        reduce_range=_needs_headroom(),
        weight_type=QuantType.QInt8,
        nodes_to_exclude=left_out,
        extra_options={"MatMulConstBOnly": True},
    )


def _quantize_statically(
    exported: Path,
    proto: onnx.ModelProto,
    target: Path,
    spec: Spec,
    calibration: Calibration,
    left_out: list[str],
    source: ModelSource,
) -> None:
    """Weights and activations to int8 as QuantizeLinear and DequantizeLinear around float operators (QDQ).

    Ranges come from the calibration batches, one in memory at a time: their minimum and maximum, a moving
    average of these, or all but 0.001% of the values (for ``histogram``).

    Raises
    ------
    QuantizationError
        There are no calibration samples.
    """
    _rename_ambiguous_constants(proto.graph)
    proto = onnx.shape_inference.infer_shapes(proto)
    operators = [operator for operator in QDQRegistry if operator != "Gather"]
    method, options = _CALIBRATION[calibration.observer]
    augmented = target.with_suffix(".augmented")
    calibrator = create_calibrator(
        exported, operators, augmented_model_path=augmented, calibrate_method=method, extra_options=options
    )
    for inputs in batches_of(source, calibration):
        arrays = {name: tensor.numpy() for name, tensor in zip(source.example_inputs, inputs, strict=True)}
        calibrator.collect_data(_OneBatch(arrays))
    ranges = calibrator.compute_data()
    del calibrator
    augmented.unlink()
    quantizer = QDQQuantizer(
        proto,
        per_channel=spec.layers[EVERY].granularity == "channel",
        reduce_range=_needs_headroom(),
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=ranges,
        nodes_to_quantize=[],
        nodes_to_exclude=left_out,
        op_types_to_quantize=operators,
        extra_options={},
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(target))


def _rename_ambiguous_constants(graph: onnx.GraphProto) -> None:
    """Rename, in place, every constant whose name with digits behind it is another tensor's name.

    The tools copy a bias for each node that shares it, and look for the copy's name among constants only: the copy
    ``val_124`` of ``val_12`` takes the place of an activation of that name (onnxruntime issue 24705).
    """
    nodes = list(_nodes(graph))
    taken = {described.name for described in (*graph.input, *graph.initializer)}
    taken |= {name for node in nodes for name in node.output}
    ambiguous = {name[:end] for name in taken for end in range(len(name.rstrip(_DIGITS)), len(name))}
    outputs = {output.name for output in graph.output}
    renamed: dict[str, str] = {}
    for tensor in graph.initializer:
        if tensor.name in ambiguous - outputs:
            name = f"{tensor.name}_constant"
            while name in taken | ambiguous:
                name += "_"
            renamed[tensor.name] = name
            tensor.name = name
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for described in graph.value_info:
        described.name = renamed.get(described.name, described.name)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """A graph's nodes, with those of the branches and loops within them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


class _OneBatch:
    """A single batch: the tools would otherwise keep every activation of all of them."""

    def __init__(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        self._left: Iterator[dict[str, NDArray[np.generic]]] = iter([arrays])

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        return next(self._left, None)


_CALIBRATION: dict[str, tuple[CalibrationMethod, dict[str, object]]] = {
    "min-max": (CalibrationMethod.MinMax, {}),
    "moving-average": (CalibrationMethod.MinMax, {"moving_average": True}),
    "histogram": (CalibrationMethod.Percentile, {"percentile": _PERCENTILE}),
}


def _needs_headroom() -> bool:
    """Without VNNI, sums of products of 8-bit numbers saturate in 16 bits unless one bit is kept free."""
    return not this_machine().has_vnni
