"""Choose how a model is quantized: eager mode where it can express the model whole, FX graph mode otherwise."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.ao.quantization.quantization_mappings import get_default_static_quant_module_mappings
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.graph import unsupported as unsound
from tasks.quantize.graph.fuse import Chain, find_chains, functional_relu_after_chain
from tasks.quantize.graph.trace import Traced, trace
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import StaticRecipe

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
# Have a place in eager mode's mapping, but none that a recipe's observers fit.
_UNMAPPED: tuple[type[nn.Module], ...] = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Plan:
    """How one model is quantized.

    ``borders`` says where values become quantized in eager mode: at the model's ``own`` stubs or ``around`` it.
    ``excluded`` are the heads of what stays float on request or because its kernels are unsound, ``outside`` modules
    that the model's own stubs leave float. ``own_fusing`` means that its `fuse_model` does what ``chains`` would
    do.
    """

    flow: Literal["eager", "fx"]
    borders: Literal["own", "around"]
    own_fusing: bool
    chains: tuple[Chain, ...]
    excluded: tuple[str, ...]
    outside: tuple[str, ...] = ()


def make_plan(model: nn.Module, recipe: StaticRecipe | QatRecipe, example_inputs: Mapping[str, torch.Tensor]) -> Plan:
    """Look at a float model and decide.

    Raises
    ------
    QuantizationError
        An excluded module does not exist, a convolution pads its sides differently, or the flow that the recipe asks
        for cannot express the model.
    """
    excluded = (*_known(model, recipe.exclude), *_unsound(model, recipe.exclude))
    _refuse_uneven_padding(model, excluded)
    stubs = any(isinstance(module, QuantStub) for module in model.modules())
    own_fusing = stubs and callable(getattr(model, "fuse_model", None))
    if own_fusing and recipe.flow != "fx":
        chains = _chains_of_traceable(model, example_inputs, excluded, is_qat=recipe.method == "qat")
        return Plan("eager", "own", True, chains, _heads(excluded, chains))
    try:
        traced = trace(model, example_inputs, excluded)
    except QuantizationError:
        if stubs and recipe.flow != "fx":
            return Plan("eager", "own", False, (), excluded)
        raise
    chains = find_chains(traced, is_qat=recipe.method == "qat")
    heads = _heads(excluded, chains)
    kept = {*excluded, *(path for chain in chains if chain.head in heads for path in chain.modules)}
    if recipe.flow == "fx":
        return Plan("fx", "around", False, chains, heads)
    obstacle, outside = _walk(traced, kept, around=False) if stubs else ("", ())
    if stubs and not obstacle and not outside:
        return Plan("eager", "own", False, chains, heads)
    around_obstacle, _ = _walk(traced, kept, around=True)
    if stubs and around_obstacle and not obstacle:
        return Plan("eager", "own", False, chains, heads, outside)
    if around_obstacle and recipe.flow == "eager":
        raise QuantizationError(
            f"Eager mode cannot express {type(model).__name__}: {around_obstacle}.",
            hint='Use flow = "fx" or "auto", or name the module that holds it in exclude.',
        )
    if around_obstacle or (recipe.flow == "auto" and functional_relu_after_chain(traced)):
        return Plan("fx", "around", False, chains, heads)
    return Plan("eager", "around", False, chains, heads)


def _chains_of_traceable(
    model: nn.Module, example_inputs: Mapping[str, torch.Tensor], excluded: tuple[str, ...], *, is_qat: bool
) -> tuple[Chain, ...]:
    """Chains of a model that fuses itself: they only say what belongs together, so none is needed."""
    try:
        return find_chains(trace(model, example_inputs, excluded), is_qat=is_qat)
    except QuantizationError:
        return ()


def _known(model: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    paths = {path for path, _ in model.named_modules() if path}
    unknown = [name for name in names if name not in paths]
    if unknown:
        near = {close for name in unknown for close in difflib.get_close_matches(name, paths)}
        raise QuantizationError(
            f"exclude names modules that {type(model).__name__} does not have: {', '.join(unknown)}.",
            hint=f"Near them: {', '.join(sorted(near))}." if near else f"It has: {', '.join(sorted(paths)[:40])}.",
        )
    # A module within an excluded one is excluded with it.
    return tuple(name for name in names if not any(name.startswith(f"{other}.") for other in names))


def _unsound(model: nn.Module, exclude: tuple[str, ...]) -> tuple[str, ...]:
    """What has no kernel that can be trusted, and is not excluded anyway."""
    return tuple(
        path
        for path, module in model.named_modules()
        if type(module) in unsound.MODULES and not any(f"{path}.".startswith(f"{name}.") for name in exclude)
    )


def _refuse_uneven_padding(model: nn.Module, excluded: tuple[str, ...]) -> None:
    """Quantized convolutions pad both sides alike, which ``padding="same"`` does not for kernels of even size."""
    for path, module in model.named_modules():
        if not isinstance(module, _ConvNd) or module.padding != "same":
            continue
        uneven = any(reach * (size - 1) % 2 for size, reach in zip(module.kernel_size, module.dilation, strict=True))
        if uneven and not any(f"{path}.".startswith(f"{name}.") for name in excluded):
            raise QuantizationError(
                f'The convolution {path} has an even kernel and padding="same", for which there is no int8 kernel.',
                hint=f'Name "{path}" in exclude, or pad before it with nn.ZeroPad2d.',
            )


def _heads(excluded: tuple[str, ...], chains: tuple[Chain, ...]) -> tuple[str, ...]:
    """What excluded modules are called once fused: a chain with one float module is float as a whole."""
    head_of = {path: chain.head for chain in chains for path in chain.modules}
    return tuple(dict.fromkeys(head_of.get(name, name) for name in excluded))


def _walk(traced: Traced, kept: set[str], *, around: bool) -> tuple[str, tuple[str, ...]]:
    """Follow quantized values through the graph.

    Returns the first operation that has no quantized kernel in eager mode ("" where all have), and the modules that
    could be quantized but get float values.
    """
    observed = _functionals(traced)
    mapped = set(get_default_static_quant_module_mappings())
    quantized: set[fx.Node] = set()
    outside: list[str] = []
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            if around and node.op == "placeholder" and node in traced.ranks:
                quantized.add(node)
            continue
        module = traced.modules.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, QuantStub) and not around:
            quantized.add(node)
        elif isinstance(module, DeQuantStub) and not around:
            continue
        elif not any(source in quantized for source in node.all_input_nodes):
            if module is not None and _weighted(module, mapped) and str(node.target) not in kept:
                outside.append(str(node.target))
        elif node in traced.ranks and node.op != "output":
            quantized.add(node)
            if node in observed or str(node.target) in kept or isinstance(module, QuantStub | DeQuantStub):
                continue
            name = _not_expressible(node, module, mapped)
            if name:
                return name, tuple(outside)
    return "", tuple(outside)


def _weighted(module: nn.Module, mapped: set[Callable[..., Any]]) -> bool:
    return type(module) in mapped and next(module.parameters(), None) is not None


def _not_expressible(node: fx.Node, module: nn.Module | None, mapped: set[Callable[..., Any]]) -> str:
    if module is not None:
        fits = isinstance(module, _PASSING_MODULES) or (type(module) in mapped and not isinstance(module, _UNMAPPED))
        return "" if fits else f"there is no quantized kernel for module {node.target} of type {type(module).__name__}"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if name in _PASSING_FUNCTIONS:
        return ""
    return f'the functional operation "{name}" (node {node.name}) has no observer of its own'


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
            if getattr(source.target, "__name__", "") == "relu":
                found.update(source.all_input_nodes)
    return found
