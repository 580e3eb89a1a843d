"""Quantize an exported model with torchao's PT2E, lower it to XNNPACK, and determine which products are int8."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.nn.modules.rnn import RNNBase

from storage.errors import QuantizationError
from tasks.data.outputs import Call, distance, finite_outputs, worst
from tasks.data.sections import BATCH
from tasks.environment.libraries import contained
from tasks.quantize.base import Trained, converter_of
from tasks.quantize.coverage import cover, excluded_modules, leaves_of, nothing_quantized, unnamed
from tasks.quantize.export import forget_decompositions, open_shapes, opened
from tasks.quantize.source import ModelSource, refusing
from tasks.quantize.pt2e import path_of
from tasks.quantize.spec import EVERY, Spec
from tasks.quantize.trained import Rounded
from tasks.runtimes.base import Made, Maker
from tasks.runtimes.executorch.open import MODEL, open_program
from tasks.values.refs import ModuleCoverage

# ExecuTorch plans memory for the largest length of each axis. An axis without a bound would be as long as the example.
LARGEST = 256
_HINT = "Remove executorch from the recipe's `runtimes`."
# In a quantized graph, an int8 product is a float product of dequantized values. These are the positions of its factors.
_FACTORS = {"convolution": (0, 1), "linear": (0, 1), "mm": (0, 1), "addmm": (1, 2), "embedding": (0,)}

Axes: TypeAlias = Mapping[str, Mapping[int, str]]


class ExecuTorchMaker(Maker):
    """A maker that quantizes the exported model and writes an ExecuTorch program."""

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Quantize and lower the model, and compare the program's outputs with the module's outputs."""
        model = source.float_model()
        excluded = excluded_modules(model, spec.exclude)
        with contained():
            axes = _axes(model, source)
            quantized = _quantized(source, spec, excluded, axes)
            lowered = _lower(_export(quantized.model, source, axes))
            with refusing("ExecuTorch cannot write the model", _HINT):
                (folder / MODEL).write_bytes(lowered.to_executorch().buffer)
        products = list(_products(lowered.exported_program().graph_module))
        int8 = {path for path, _ in products} - {path for path, is_int8 in products if not is_int8}

        def why_float(leaf: ModuleCoverage) -> str:
            head = quantized.folded.get(leaf.module, leaf.module)
            if spec.why_float or head in int8:
                return spec.why_float
            if not excluded.isdisjoint((leaf.module, head)):
                return "excluded by the recipe"
            if EVERY not in spec.layers and leaf.type not in spec.layers:
                return unnamed(leaf.type)
            return f"XNNPACK has no int8 kernel for this {leaf.type}"

        coverage = cover(leaves_of(model), why_float)
        found = {leaf.type for leaf in coverage if leaf.quantized}
        if spec.layers and (not int8 or ("Embedding" in spec.layers and "Embedding" not in found)):
            raise nothing_quantized(spec, coverage, "embedding" if int8 else "module")
        reference = quantized.model if spec.training is not None else model
        _refuse_other(open_program(folder / MODEL, 1), quantized.model, reference, source, spec)
        return Made(size_bytes=(folder / MODEL).stat().st_size, coverage=coverage, notes=tuple(_notes(model, source)))


def _refuse_other(program: Call, quantized: nn.Module, reference: nn.Module, source: ModelSource, spec: Spec) -> None:
    """Raise `QuantizationError` if the program is further from the reference than the quantized module is.

    The program need not be near the module: XNNPACK rounds at other points, the differences grow from layer to layer,
    and its dynamic ranges are finer than the module's.
    """
    exact, module, found = (
        finite_outputs(call, source.example_inputs, spec.name) for call in (reference, quantized, program)
    )
    shapes = [[output.shape for output in outputs] for outputs in (exact, found)]
    allowed = spec.tolerance + worst(*map(distance, module, exact))
    if shapes[0] != shapes[1] or not (off := worst(*map(distance, found, exact))) <= allowed:
        amount = f"differ by {off:.1%} of their range" if shapes[0] == shapes[1] else "have other shapes"
        raise QuantizationError(
            f'The outputs of the model changed after lowering to ExecuTorch with recipe "{spec.name}": they {amount}.',
            hint=_HINT,
        )


def _quantized(source: ModelSource, spec: Spec, excluded: Collection[str], axes: Axes) -> Trained:
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
    from tasks.runtimes.executorch.quantizer import quantize  # torchao takes seconds to import

    graph = _export(source.float_model(), source, axes).module()
    assert isinstance(graph, fx.GraphModule)
    return quantize(graph, spec, source, excluded)


def _export(model: nn.Module, source: ModelSource, axes: Axes) -> ExportedProgram:
    """Export a model; the axes in `axes` stay dynamic, up to `LARGEST`."""
    inputs = opened(source.example_inputs, axes)
    forget_decompositions()
    hint = f"Rewrite the code named in the message. {_HINT}"
    with refusing("The model cannot be exported for ExecuTorch", hint), torch.no_grad():
        return torch.export.export(
            model,
            tuple(tensor.contiguous() for tensor in inputs.values()),
            dynamic_shapes=open_shapes(model, inputs, axes, LARGEST),
        )


def _axes(model: nn.Module, source: ModelSource) -> Axes:
    """Return the axes that stay dynamic: only the rows if the model has recurrent layers, which are unrolled."""
    if not _recurrent(model):
        return source.axes
    return {
        name: {axis: length for axis, length in axes.items() if length == BATCH} for name, axes in source.axes.items()
    }


def _recurrent(model: nn.Module) -> str:
    return ", ".join(sorted({type(part).__name__ for part in model.modules() if isinstance(part, RNNBase)}))


def _notes(model: nn.Module, source: ModelSource) -> Iterator[str]:
    """Yield notes about the axes of fixed length."""
    dynamic = {length for axes in _axes(model, source).values() for length in axes.values()}
    for name, axes in source.axes.items():
        for axis, length in axes.items():
            if length not in dynamic:
                dynamic.add(length)
                steps = source.example_inputs[name].shape[axis]
                yield f"{length} is fixed at {steps}, because ExecuTorch unrolls the model's {_recurrent(model)}"


def _lower(program: ExportedProgram) -> Any:
    """Lower a program; all nodes that XNNPACK supports become calls of XNNPACK."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with refusing("ExecuTorch cannot lower the model", _HINT):
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    # Lowering traces the graph again, and torch narrows axes to lengths for which it would choose the same kernels as
    # for the example: without this, a convolution's batch of 2 would limit all batches to 15.
    for node in lowered.exported_program().graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                size.node.shape_env.var_to_range.update(program.range_constraints)
    return lowered


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
