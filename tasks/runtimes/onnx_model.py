"""The float model as ONNX: an artifact that runtimes share, made by torch.export without TorchScript.

Every node is named after the module that it comes from (``rnn/node_LSTM_54``), so that a recipe's exclusions and the
coverage can speak of modules.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from onnx import ModelProto
from onnxscript.optimizer import optimize_ir
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from storage.artifacts import artifact_digest
from storage.errors import QuantizationError, first_line
from tasks.libraries import quiet
from tasks.machine import installed_version
from tasks.quantize.base import converter_of
from tasks.quantize.coverage import unnamed
from tasks.quantize.export import open_shapes, opened
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import EVERY, Spec
from tasks.refs import ModuleCoverage
from tasks.runtimes.exported import DISTRIBUTIONS
from tasks.runtimes.onnx_lstm import lstm
from tasks.sources import code_digest

KIND = "onnx"
MODEL, FOLDED = "model.onnx", "folded.json"
# What a protocol buffer can hold.
LARGEST_BYTES = 2**31 - 1


def find_or_export(source: ModelSource, spec: Spec | None = None, *, largest_bytes: int = LARGEST_BYTES) -> Path:
    """Export the float model, or find what was exported before; the artifact's folder, named by its digest.

    Of a spec with training it is the fine-tuned model, with int8 weights, QuantizeLinear and DequantizeLinear. The axes
    that the domain declares keep their freedom; all others have the lengths of the example inputs.

    Raises
    ------
    QuantizationError
        The model cannot be exported, or is too large for one ONNX file.
    """
    made_from = {
        **source.made_from,
        "axes": {name: dict(axes) for name, axes in source.axes.items()},
        "versions": {name: installed_version(name) for name in DISTRIBUTIONS},
        "export": code_digest(__name__),
    }
    if spec is not None and spec.training is not None:
        made_from["recipe"] = spec.recipe.content()
        made_from["training"] = code_digest(type(converter_of(spec)).__module__)
    digest = artifact_digest(KIND, made_from)
    store = source.workspace.store
    with source.workspace.alone(digest):
        if store.find(KIND, digest) is None:
            model = source.float_model()
            size = sum(tensor.nbytes for tensor in model.state_dict().values())
            if size > largest_bytes:
                raise QuantizationError(
                    f"As ONNX the model would be a file of {size / 1e9:.1f} GB, and one file holds 2.1 GB at most.",
                    hint="Take the ONNX-based runtimes out of this workload's recipes.",
                )
            with store.create(KIND, digest, made_from) as folder:
                paths: Mapping[str, str] = {}
                folded: Mapping[str, str] = {}
                if spec is not None and spec.training is not None:
                    trained = converter_of(spec).train(spec, source)
                    model, paths, folded = trained.model, trained.paths, trained.folded
                exported, norms = export(model, source.example_inputs, source.axes, paths)
                (folder / MODEL).write_bytes(exported.SerializeToString())
                (folder / FOLDED).write_text(json.dumps({**norms, **folded}), encoding="utf-8")
    return store.path(KIND, digest)


def export(
    model: nn.Module,
    examples: Mapping[str, Tensor],
    axes: Mapping[str, Mapping[int, str]],
    paths: Mapping[str, str] = MappingProxyType({}),
) -> tuple[ModelProto, dict[str, str]]:
    """Export a model in evaluation mode, without paths of this machine and with nodes named after their modules.

    Of a model that has others around its modules, `paths` says what these are to be called. The second result says of
    batch norms that are no operators of their own which module they were folded into.

    Raises
    ------
    QuantizationError
        torch.export cannot follow the model, or an operator has no counterpart in ONNX.
    """
    inputs = opened(examples, axes)
    try:
        with quiet(), torch.no_grad():
            given, names = tuple(inputs.values()), list(inputs)
            program = torch.onnx.export(
                model,
                given,
                dynamo=True,
                dynamic_shapes=open_shapes(model, inputs, axes),
                input_names=names,
                custom_translation_table={torch.ops.aten.lstm.input: lstm},
                verbose=False,
            )
            assert program is not None
            # Weights that are still computed from others (an LSTM's, in ONNX's order) would be nobody's weights.
            optimize_ir(program.model, input_size_limit=LARGEST_BYTES, output_size_limit=LARGEST_BYTES)
    except Exception as error:
        raise QuantizationError(
            f"The model cannot be exported to ONNX: {first_cause(error)}.",
            hint="Take the ONNX-based runtimes out of its recipes, or rewrite what the message is about.",
        ) from error
    exported = program.model_proto
    modules = dict(model.named_modules())
    folded: dict[str, str] = {}
    for node in exported.graph.node:
        scopes = {entry.key: entry.value for entry in node.metadata_props}.get("pkg.torch.onnx.name_scopes", "[]")
        path = next((scope for scope in reversed(ast.literal_eval(scopes)) if scope in modules), "")
        if isinstance(modules.get(path), _BatchNorm) and node.op_type != "BatchNormalization":
            # It was folded into an operator whose weights have kept their name.
            owner = next((name.rpartition(".")[0] for name in node.input if name.endswith(".weight")), "")
            if owner in modules:
                folded[paths.get(path, path)] = paths.get(owner, owner)
                path = owner
        node.name = f"{paths.get(path, path)}/{node.name}"
        del node.metadata_props[:]  # they hold source code and paths of this machine
    graph = exported.graph
    for described in (exported, graph, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del described.metadata_props[:]
    return exported, folded


def why_float(
    spec: Spec, exported: Path, excluded: frozenset[str], products: Collection[str], int8: Collection[str], reason: str
) -> Callable[[ModuleCoverage], str]:
    """Say why modules stay float that an exported file was quantized without, "" for the others.

    A module without a product of its own in the exported file was folded into another one: a batch norm into its
    convolution.

    Parameters
    ----------
    products, int8
        Paths of the modules with products in the exported file, and of those that are all int8 now.
    reason
        Why the runtime's tools leave a module of a ``{type}`` float that nothing excludes.
    """
    folded: dict[str, str] = json.loads(exported.with_name(FOLDED).read_text(encoding="utf-8"))

    def why(leaf: ModuleCoverage) -> str:
        head = folded.get(leaf.module, leaf.module)
        if spec.why_float or head in int8:
            return spec.why_float
        if not excluded.isdisjoint((leaf.module, head)):
            return "excluded by the recipe"
        if head not in products:
            return ""
        if EVERY not in spec.layers and leaf.type not in spec.layers:
            return unnamed(leaf.type)
        return reason.format(type=leaf.type)

    return why


def module_of(node: str) -> str:
    """Path of the module that a node of that name comes from, also where a runtime has put more behind the name."""
    path, slash, _ = node.partition("/")
    return path if slash else ""


def first_cause(error: BaseException) -> str:
    """The first line of what an error was caused by at first; exporters wrap it several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)[:300]
