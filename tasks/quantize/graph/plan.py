"""Choose how a model is quantized: eager mode where it can express the model whole, FX graph mode otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import fx, nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.ao.quantization.quantization_mappings import get_default_static_quant_module_mappings

from storage.errors import QuantizationError
from tasks.quantize.coverage import excluded_modules
from tasks.quantize.graph.fuse import Chain, find_chains, has_functional_relu_to_fuse
from tasks.quantize.graph.observers import UNSUPPORTED
from tasks.quantize.graph.trace import Traced, operation_name, trace
from tasks.quantize.spec import Spec

# Modules without parameters whose kernels take quantized tensors as they are.
_PASSING_MODULES: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.ReLU, nn.Hardtanh, nn.Dropout2d, nn.Flatten, nn.Unflatten, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Upsample, nn.ChannelShuffle,
    nn.PixelShuffle, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid,
)  # fmt: skip
# Functions and methods that take quantized tensors and keep, or safely choose, their range.
_PASSING_FUNCTIONS = frozenset({
    "flatten", "reshape", "view", "permute", "transpose", "contiguous", "squeeze", "unsqueeze", "chunk", "split",
    "getitem", "select", "narrow", "expand", "clone", "detach", "relu", "relu_", "dropout", "max_pool1d", "max_pool2d",
    "max_pool3d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate",
    "channel_shuffle", "pixel_shuffle", "mean", "boolean_dispatch",
})  # fmt: skip
# Modules that eager mode converts, and those among them that a recipe's observers do not fit.
_MAPPED = set(get_default_static_quant_module_mappings())
_UNMAPPED = {nn.Embedding, nn.EmbeddingBag}


@dataclass(frozen=True)
class Plan:
    """How one model is quantized.

    ``borders`` says where values become quantized in eager mode: at the model's ``own`` stubs or ``around`` it.
    ``excluded`` are the heads of what stays float on request or because its kernels are unsupported, ``outside``
    modules that the model's own stubs leave float. ``own_fusing`` means that its `fuse_model` does what ``chains``
    would do.
    """

    graph: Literal["eager", "fx"]
    borders: Literal["own", "around"]
    own_fusing: bool
    chains: tuple[Chain, ...]
    excluded: tuple[str, ...]
    outside: tuple[str, ...] = ()

    @property
    def kept(self) -> frozenset[str]:
        """Paths of what stays float, with what is fused into it."""
        fused = (path for chain in self.chains if chain[0] in self.excluded for path in chain)
        return frozenset((*self.excluded, *fused))


def make_plan(model: nn.Module, spec: Spec, example_inputs: Mapping[str, torch.Tensor]) -> Plan:
    """Look at a float model and decide.

    Raises
    ------
    QuantizationError
        An excluded module does not exist, or the graph mode that the spec asks for cannot express the model.
    """
    excluded = _stay_float(model, spec.recipe.exclude)
    own_stubs = spec.graph != "fx" and any(isinstance(module, QuantStub) for module in model.modules())
    own_fusing = own_stubs and callable(getattr(model, "fuse_model", None))
    try:
        traced = trace(model, example_inputs, excluded)
    except QuantizationError:
        if not own_stubs:
            raise
        # It says itself where values are quantized, and maybe what is fused.
        return Plan("eager", "own", own_fusing, (), excluded)
    chains = find_chains(traced, is_qat=spec.training is not None)
    head_of = {path: chain[0] for chain in chains for path in chain}
    # A chain with one float module is float as a whole.
    plan = Plan("fx", "around", False, chains, tuple(dict.fromkeys(head_of.get(name, name) for name in excluded)))
    if spec.graph == "fx":
        return plan
    if own_fusing:
        return replace(plan, graph="eager", borders="own", own_fusing=True)
    obstacle, _ = _follow_quantized(traced, plan.kept, around=True)
    if own_stubs:
        own_obstacle, outside = _follow_quantized(traced, plan.kept, around=False)
        if not own_obstacle and (obstacle or not outside):
            return replace(plan, graph="eager", borders="own", outside=outside)
    if obstacle and spec.graph == "eager":
        raise QuantizationError(
            f"Eager mode cannot express {type(model).__name__}: {obstacle}.",
            hint='Use graph = "fx" or "auto", or name the module that holds it in exclude.',
        )
    if obstacle or (spec.graph == "auto" and has_functional_relu_to_fuse(traced)):
        return plan
    return replace(plan, graph="eager")


def _stay_float(model: nn.Module, exclude: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the outermost excluded modules, then of those whose kernels cannot be trusted."""
    excluded = excluded_modules(model, exclude)
    outermost = (name for name in exclude if not any(name.startswith(f"{other}.") for other in exclude))
    unsupported = (path for path, module in model.named_modules() if type(module) in UNSUPPORTED)
    return (*outermost, *(path for path in unsupported if path not in excluded))


def _follow_quantized(traced: Traced, kept: Collection[str], *, around: bool) -> tuple[str, tuple[str, ...]]:
    """Follow quantized values through the graph, from around the model or from its own stubs.

    Returns the first operation that has no quantized kernel in eager mode ("" where all have), and the modules that
    could be quantized but get float values.
    """
    observed = _functionals(traced)
    quantized: set[fx.Node] = set()
    outside: list[str] = []
    for node in traced.graph.nodes:
        module, path = traced.module_of(node), str(node.target)
        if node.op == "placeholder":
            if around and node in traced.ranks:
                quantized.add(node)
        elif isinstance(module, QuantStub) and not around:
            quantized.add(node)
        elif isinstance(module, DeQuantStub) and not around:
            continue
        elif quantized.isdisjoint(node.all_input_nodes):
            if (
                module is not None
                and type(module) in _MAPPED
                and path not in kept
                and any(True for _ in module.parameters())
            ):
                outside.append(path)
        elif node in traced.ranks and node.op != "output":
            quantized.add(node)
            passes = node in observed or path in kept or isinstance(module, QuantStub | DeQuantStub)
            if not passes and (obstacle := _obstacle(node, module, traced.plain)):
                return obstacle, ()
    return "", tuple(outside)


def _obstacle(node: fx.Node, module: nn.Module | None, plain: Collection[str]) -> str:
    """Why eager mode cannot express an operation on quantized values, "" where it can."""
    if node.target in plain:
        return f"forward calls a function with the parameters of {node.target}"
    if module is None:
        name = operation_name(node)
        passes = name in _PASSING_FUNCTIONS
        return "" if passes else f'the functional operation "{name}" (node {node.name}) has no observer of its own'
    if isinstance(module, _PASSING_MODULES) or type(module) in _MAPPED - _UNMAPPED:
        return ""
    return f"there is no quantized kernel for module {node.target} of type {type(module).__name__}"


def _functionals(traced: Traced) -> set[fx.Node]:
    """Nodes that stem from a FloatFunctional, which eager mode does express, observer and all."""
    found: set[fx.Node] = set()
    for node in traced.graph.nodes:
        parent, _, last = str(node.target).rpartition(".")
        owner = traced.modules.get(parent)
        if node.op == "call_module" and last == "activation_post_process" and isinstance(owner, FloatFunctional):
            source = node.all_input_nodes[0]
            found.update((node, source))
            # add_relu is traced as an addition and a ReLU.
            if operation_name(source) == "relu":
                found.update(source.all_input_nodes)
    return found
