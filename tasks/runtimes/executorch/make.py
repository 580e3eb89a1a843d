"""Quantize an exported model with torchao's PT2E, lower it to XNNPACK, and determine which products are int8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn.modules.rnn import RNNBase

from storage.errors import QuantizationError
from tasks.data.outputs import Call, distance, finite_outputs, worst
from tasks.data.sections import BATCH
from tasks.environment.libraries import contained
from tasks.quantize.coverage import cover_products, excluded_modules, nothing_quantized
from tasks.quantize.export import forgetting_exports, open_shapes, opened, path_of
from tasks.quantize.source import ModelSource, Trained, converter_of, refusing
from tasks.quantize.spec import Spec
from tasks.quantize.trained import Rounded
from tasks.runtimes.base import Made, Maker
from tasks.runtimes.executorch.open import LARGEST, LENGTHS, MODEL, open_program

_LACK = "XNNPACK has no int8 kernel for this {type}"
_HINT = "Remove executorch from the recipe's `runtimes`."
# Positions of the factors of each product. An int8 product is a float product of dequantized values.
_FACTORS = {"convolution": (0, 1), "linear": (0, 1), "mm": (0, 1), "addmm": (1, 2), "embedding": (0,)}

Axes: TypeAlias = Mapping[str, Mapping[int, str]]


class ExecuTorchMaker(Maker):
    """A maker that quantizes the exported model and writes an ExecuTorch program."""

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Quantize and lower the model, and compare the program's outputs with the module's outputs."""
        model = source.float_model()
        excluded, axes = excluded_modules(model, spec.exclude), _axes(model, source)
        with contained():
            quantized = _quantized(source, spec, excluded, axes)
            lowered, content = _lower(_export(quantized.model, source, axes), _lengths(source, axes))
        (folder / MODEL).write_bytes(content)
        products = list(_products(lowered))
        int8 = {path for path, _ in products} - {path for path, is_int8 in products if not is_int8}
        lack = "beside 4-bit layers, this {type} stays in float" if "group" in spec.granularities else _LACK
        coverage = cover_products(model, spec, int8, quantized.folded, lack)
        if "Embedding" in spec.layers:
            raise nothing_quantized(spec, [leaf for leaf in coverage if leaf.type == "Embedding"], "embedding")
        reference = quantized.model if spec.training is not None else model
        with refusing("ExecuTorch cannot load the program", f"--debug shows operators without kernels. {_HINT}"):
            program = open_program(folder / MODEL, 1)
        _refuse_other(program, quantized.model, reference, source, spec)
        return Made(size_bytes=len(content), coverage=coverage, notes=tuple(_notes(model, source, axes)))


def _refuse_other(program: Call, quantized: nn.Module, reference: nn.Module, source: ModelSource, spec: Spec) -> None:
    """Refuse a program further from the reference than the module is; XNNPACK rounds elsewhere and may be nearer."""
    exact, module, found = (
        finite_outputs(call, source.example_inputs, spec.name) for call in (reference, quantized, program)
    )
    off = worst(*map(distance, found, exact))
    if not off <= spec.tolerance + worst(*map(distance, module, exact)):
        message = f'With recipe "{spec.name}", the ExecuTorch program and the model differ by {off:.1%} of the range.'
        raise QuantizationError(message, hint=_HINT)


def _quantized(source: ModelSource, spec: Spec, excluded: frozenset[str], axes: Axes) -> Trained:
    """Return the float, calibrated or fine-tuned module, and the layers into which batch norms were folded."""
    if spec.training is not None:
        trained = converter_of(spec).train(spec, source)
        for module in trained.model.modules():
            if isinstance(module, Rounded):  # XNNPACK has kernels for signed activations only
                scale, zero_point, *_ = module.step
                module.step = scale, zero_point - 128, -128, 127, torch.int8
        return trained
    if not spec.layers:
        return Trained(source.float_model(), {})
    from tasks.runtimes.executorch.quantizer import quantize, with_four_bits  # torchao takes seconds to import

    if "group" in spec.granularities:
        return Trained(with_four_bits(source.float_model(), excluded), {})
    program = _export(source.float_model(), source, axes)
    if "LSTM" in spec.layers:  # unroll the LSTMs before products are chosen
        table = torch.export.default_decompositions().items()  # type: ignore[no-untyped-call]
        program = program.run_decompositions({operator: how for operator, how in table if "lstm" in str(operator)})
    graph = program.module()
    assert isinstance(graph, fx.GraphModule)
    return quantize(graph, spec, source, excluded)


def _export(model: nn.Module, source: ModelSource, axes: Axes) -> ExportedProgram:
    """Export a model; the axes in `axes` stay dynamic, up to `LARGEST`."""
    inputs = opened(source.example_inputs, axes)
    hint = f"Rewrite the code named in the message. {_HINT}"
    with refusing("The model cannot be exported for ExecuTorch", hint), torch.no_grad(), forgetting_exports():
        return torch.export.export(
            model,
            tuple(tensor.contiguous() for tensor in inputs.values()),
            dynamic_shapes=open_shapes(model, inputs, axes, LARGEST),
        )


def _axes(model: nn.Module, source: ModelSource) -> Axes:
    """Return the axes that stay dynamic: only the rows if the model has recurrent layers, which are unrolled."""
    unrolled, axes = _recurrent(model), source.axes.items()
    return {name: {i: axis for i, axis in named.items() if axis == BATCH or not unrolled} for name, named in axes}


def _recurrent(model: nn.Module) -> str:
    return ", ".join(sorted({type(part).__name__ for part in model.modules() if isinstance(part, RNNBase)}))


def _notes(model: nn.Module, source: ModelSource, axes: Axes) -> Iterator[str]:
    """Yield notes about the axes of fixed length."""
    for name, named in source.axes.items():
        for index in sorted(named.keys() - axes[name].keys()):
            fixed = f"the axis {named[index]} of {name} has length {source.example_inputs[name].shape[index]}"
            yield f"{fixed}, because ExecuTorch unrolls {_recurrent(model)}"


def _lengths(source: ModelSource, axes: Axes) -> Tensor:
    """Return a row for each input: the lengths of its axes, or 0 for a dynamic length."""
    rows = [
        torch.tensor([0 if axis in axes.get(name, {}) else length for axis, length in enumerate(tensor.shape)])
        for name, tensor in source.example_inputs.items()
    ]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _lower(program: ExportedProgram, lengths: Tensor) -> tuple[fx.GraphModule, bytes]:
    """Turn all nodes that XNNPACK supports into calls of XNNPACK; return the graph, and the program as bytes."""
    import executorch.kernels.quantized  # noqa: F401 - for the values around layers that XNNPACK does not take
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    # ExecuTorch's check of operators that return several tensors, such as `chunk`, fixes the first axis to its example.
    unchecked, methods = EdgeCompileConfig(_check_ir_validity=False), {LENGTHS: lengths}
    with refusing("ExecuTorch cannot lower the model", _HINT):
        lowered = to_edge_transform_and_lower(program, None, [XnnpackPartitioner()], methods, unchecked)
        graph: fx.GraphModule = lowered.exported_program().graph_module
        # Lowering narrows the axes: without this, a convolution's batch of 2 would limit all batches to 15.
        for node in graph.graph.nodes:
            for size in getattr(node.meta.get("val"), "shape", ()):
                if isinstance(size, torch.SymInt) and size.node.shape_env is not None:
                    size.node.shape_env.var_to_range.update(program.range_constraints)
        return graph, lowered.to_executorch().buffer


def _products(graph: fx.GraphModule, delegated: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the module path of each operation with weights, and whether XNNPACK computes it in int8."""
    for _, part in graph.named_children():
        if (program := getattr(part, "original_module", None)) is not None:
            yield from _products(program.graph_module, delegated=True)
    for node in graph.graph.nodes:
        kind = str(getattr(node.target, "_op", node.target)).split(".")[-2:][0] if node.op == "call_function" else ""
        if kind in _FACTORS:
            factors = [node.args[index] for index in _FACTORS[kind]]
            yield path_of(node), delegated and all("dequantize" in str(factor.target) for factor in factors)
