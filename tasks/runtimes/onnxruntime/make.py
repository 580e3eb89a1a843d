"""Quantize an exported model with ONNX Runtime's tools, and determine which modules were quantized."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import onnx
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import HistogramCalibrater, HistogramCollector, TensorsData, create_calibrator
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quantize import quantize_dynamic
from onnxruntime.quantization.registry import QDQRegistry

from tasks.environment.machine import this_machine
from tasks.quantize.source import ModelSource, batches_of
from tasks.quantize.spec import EVERY, Calibration, Spec
from tasks.runtimes.exported import ExportedMaker, module_of
from tasks.runtimes.onnxruntime.open import MODEL, OnnxOpener

# ONNX operators with dynamic int8 kernels, keyed by the type of the torch module.
DYNAMIC_OPERATORS = {"Linear": ("MatMul", "Gemm"), "LSTM": ("LSTM",), "Embedding": ("Gather",)}
# Index of the weight input, keyed by operator; operators without weights are omitted.
_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1, "LSTM": 1, "GRU": 1, "RNN": 1, "Gather": 0}
_INT8_OPERATORS = frozenset({"MatMulInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "ConvInteger"})
_INT8 = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8})
_CALIBRATION: dict[str, tuple[CalibrationMethod, dict[str, object]]] = {
    "min-max": (CalibrationMethod.MinMax, {}),
    "moving-average": (CalibrationMethod.MinMax, {"moving_average": True}),
    "histogram": (CalibrationMethod.Percentile, {"percentile": 99.999}),
}
_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0}


class OnnxMaker(ExportedMaker):
    """A maker that quantizes the exported file with ONNX Runtime's tools."""

    runtime = "onnxruntime"
    opener = OnnxOpener
    tools = "ONNX Runtime's tools"
    left_float = "ONNX Runtime has no int8 kernel for this {type}"

    def environment(self) -> dict[str, object]:
        """Return whether the processor has VNNI; without VNNI, weights use only seven bits (`reduce_range`)."""
        return {"vnni": this_machine().has_vnni}

    def quantize(
        self, exported: Path, folder: Path, spec: Spec, excluded: frozenset[str], source: ModelSource
    ) -> tuple[str, ...]:
        """Quantize the model dynamically or statically; copy a float or fine-tuned model unchanged."""
        target, proto = folder / MODEL, onnx.load(exported)
        left_out = [node.name for node in _nodes(proto.graph) if module_of(node.name) in excluded]
        if spec.calibration is not None:
            return _quantize_statically(exported, proto, target, spec, spec.calibration, left_out, source)
        if spec.layers and spec.training is None:
            _quantize_dynamically(proto, target, spec, left_out)
            return ("each embedding has one scale for its complete table",) if "Embedding" in spec.layers else ()
        shutil.copyfile(exported, target)
        return ()

    def products(self, folder: Path) -> Iterator[tuple[str, bool]]:
        """Yield the module path of each ONNX operation that has weights, and whether these weights are int8."""
        graph = onnx.load(folder / MODEL).graph
        int8 = {tensor.name for tensor in graph.initializer if tensor.data_type in _INT8}
        dequantized = [node.output for node in graph.node if node.op_type == "DequantizeLinear"]
        int8.update(*dequantized)
        for node in graph.node:
            if (
                node.op_type == "Transpose" and node.input[0] in int8
            ):  # the export transposes the weights of a Linear layer whose inputs have several rows
                int8.update(node.output)
            elif node.op_type in _INT8_OPERATORS:
                yield module_of(node.name), True
            elif (index := _WEIGHTS.get(node.op_type)) is not None:
                yield module_of(node.name), node.input[index] in int8


def _quantize_dynamically(proto: onnx.ModelProto, target: Path, spec: Spec, left_out: list[str]) -> None:
    """Quantize weights and embeddings to int8; activations are quantized at run time."""
    operators = [operator for kind in spec.layers for operator in DYNAMIC_OPERATORS.get(kind, ())]
    _split_gemms(proto.graph)
    quantize_dynamic(
        proto,
        target,
        op_types_to_quantize=operators,
        per_channel=any(layer.granularity == "channel" for kind, layer in spec.layers.items() if kind != "Embedding"),
        reduce_range=not this_machine().has_vnni,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=left_out,
        extra_options={"MatMulConstBOnly": True},
    )


def _split_gemms(graph: onnx.GraphProto) -> None:
    """Replace each Gemm that has constant weights with a MatMul, which keeps the Gemm's name, and an Add.

    Otherwise, quantize_dynamic renames the Gemm nodes before it looks for excluded names, and transposes weights in
    place, once for each Gemm that uses them.
    """
    nodes, weights = [], {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        settings = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        is_transposed = settings.pop("transB", 0)
        if node.op_type != "Gemm" or node.input[1] not in weights or not settings.items() <= _PLAIN_GEMM.items():
            nodes.append(node)
            continue
        inputs, weight, bias = node.input[0], node.input[1], node.input[2:]
        if is_transposed:
            weight += "_transposed"
            if weight not in {tensor.name for tensor in graph.initializer}:
                array = onnx.numpy_helper.to_array(weights[node.input[1]])
                graph.initializer.append(onnx.numpy_helper.from_array(array.T, weight))
        product = f"{node.output[0]}_product" if bias else node.output[0]
        nodes.append(onnx.helper.make_node("MatMul", [inputs, weight], [product], node.name))
        if bias:
            nodes.append(onnx.helper.make_node("Add", [product, *bias], node.output, f"{node.name}_bias"))
    del graph.node[:]
    graph.node.extend(nodes)


def _quantize_statically(
    exported: Path,
    proto: onnx.ModelProto,
    target: Path,
    spec: Spec,
    calibration: Calibration,
    left_out: list[str],
    source: ModelSource,
) -> tuple[str, ...]:
    """Quantize weights and activations to int8, with ranges from calibration; return notes."""
    _rename_constants(proto.graph)
    proto = onnx.shape_inference.infer_shapes(proto)
    operators = [operator for operator in QDQRegistry if operator != "Gather"]
    augmented, similar = target.with_suffix(".augmented"), set[str]()
    # The tools write a file beside the model and delete it, but other processes may be checking the exported folder.
    linked = target.with_name("exported.onnx")
    linked.symlink_to(exported.resolve())

    def ranges(observer: str) -> TensorsData:
        method, options = _CALIBRATION[observer]
        calibrator = create_calibrator(
            linked, operators, augmented_model_path=augmented, calibrate_method=method, extra_options=options
        )
        if method == CalibrationMethod.Percentile:
            calibrator.collector = _Histograms(calibrator, similar)
        for inputs in batches_of(source, calibration):
            arrays = {name: tensor.numpy() for name, tensor in zip(source.example_inputs, inputs, strict=True)}
            # Read one batch at a time, because the tools would otherwise keep the activations of all batches.
            calibrator.collect_data(SimpleNamespace(get_next=partial(next, iter([arrays]), None)))
        return calibrator.compute_data()

    tensors_range = ranges(calibration.observer)
    if similar:
        extremes = ranges("min-max")
        tensors_range.data.update({name: extremes[name] for name in similar})
    augmented.unlink()
    linked.unlink()
    quantizer = QDQQuantizer(
        proto,
        per_channel=spec.layers[EVERY].granularity == "channel",
        reduce_range=not this_machine().has_vnni,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=tensors_range,
        nodes_to_quantize=[],
        nodes_to_exclude=left_out,
        op_types_to_quantize=operators,
        extra_options={},
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(target))
    count = f"{len(similar)} of {len(tensors_range.data)} activation ranges"
    return (f"{count} are the extremes, because the values are too similar for a histogram",) if similar else ()


class _Histograms(HistogramCollector):  # type: ignore[misc]
    """A collector that adds the names of tensors without a histogram to `similar`.

    NumPy cannot compute a histogram of values that differ only in the last bits, as some values in MobileBERT do.
    """

    def __init__(self, calibrator: HistogramCalibrater, similar: set[str]) -> None:
        super().__init__(
            "percentile", calibrator.symmetric, calibrator.num_bins, None, calibrator.percentile, calibrator.scenario
        )
        self.similar = similar

    def collect(self, name_to_arr: Mapping[str, object]) -> None:
        """Add one batch of values to the histogram of each tensor."""
        for name, values in name_to_arr.items():
            try:
                super().collect({name: values})
            except ValueError as error:
                if "Too many bins" not in str(error):
                    raise
                self.similar.add(name)


def _rename_constants(graph: onnx.GraphProto) -> None:
    """Append a word to the name of each constant that ends with a digit, in place.

    The tools copy a shared bias ``val_12`` for each node, and a copy could replace an activation that is named
    ``val_124`` (onnxruntime issue 24705).
    """
    outputs = {output.name for output in graph.output}
    names = {tensor.name for tensor in graph.initializer} - outputs
    renamed = {name: f"{name}_constant" for name in names if name[-1].isdigit()}
    for node in _nodes(graph):
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for described in (*graph.initializer, *graph.value_info):
        described.name = renamed.get(described.name, described.name)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield a graph's nodes, including the nodes in branches and loops."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)
