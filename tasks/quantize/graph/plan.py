"""Choose the graph mode in which a model is quantized, and the chains of modules to fuse into int8 kernels.

Eager mode is used if it can express the entire model, and FX graph mode otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import torch
from torch import fx, nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub, fuse_modules, fuse_modules_qat
from torch.ao.quantization.quantization_mappings import get_default_static_quant_module_mappings
from torch.nn.modules.batchnorm import _BatchNorm

from storage.errors import QuantizationError
from tasks.quantize.coverage import excluded_modules, is_within
from tasks.quantize.graph.observers import UNSUPPORTED
from tasks.quantize.graph.trace import Traced, beyond_kernel, operation_name, trace
from tasks.quantize.spec import Spec

# Types of modules that accept quantized tensors and have no parameters.
_PASSING_MODULES: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.ReLU, nn.Hardtanh, nn.Dropout2d, nn.Flatten, nn.Unflatten, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Upsample, nn.ChannelShuffle,
    nn.PixelShuffle, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid,
)  # fmt: skip
# Functions and methods that accept quantized tensors and whose results stay within the input's range.
_PASSING_FUNCTIONS = frozenset({
    "flatten", "reshape", "view", "permute", "transpose", "contiguous", "squeeze", "unsqueeze", "chunk", "split",
    "getitem", "select", "narrow", "expand", "clone", "detach", "relu", "relu_", "dropout", "max_pool1d", "max_pool2d",
    "max_pool3d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate",
    "channel_shuffle", "pixel_shuffle", "mean", "boolean_dispatch",
})  # fmt: skip
# Eager mode converts the module types in `_MAPPED`, except embeddings, which need special observers.
_MAPPED = set(get_default_static_quant_module_mappings())
_UNMAPPED = {nn.Embedding, nn.EmbeddingBag}

_DIMENSIONS = (
    (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
)
_TRANSPOSED = tuple(transposed for _, transposed, _ in _DIMENSIONS)
_KERNELS: frozenset[tuple[type[nn.Module], ...]] = frozenset({
    (nn.Linear, nn.BatchNorm1d), (nn.Linear, nn.ReLU), (nn.BatchNorm2d, nn.ReLU), (nn.BatchNorm3d, nn.ReLU),
    *((conv, norm) for conv, _, norm in _DIMENSIONS),
    *((conv, norm, nn.ReLU) for conv, _, norm in _DIMENSIONS),
    *((conv, nn.ReLU) for conv, _, _ in _DIMENSIONS),
    *((transposed, norm) for _, transposed, norm in _DIMENSIONS),
})  # fmt: skip
_BEFORE_RELU = frozenset(kind for kernel in _KERNELS for kind in kernel) - {nn.ReLU}
# Paths of the modules in a chain, in call order. The fused module replaces the first module, called the head.
Chain = tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A plan for quantizing one model.

    ``borders`` determines where eager mode quantizes and dequantizes values: at the model's own stubs (``own``) or at
    its inputs and outputs (``around``). With ``own_fusing``, the model's `fuse_model` method, not ``chains``,
    determines the modules to fuse. ``excluded`` contains the modules and chain heads that stay in float because they
    are excluded or lack a supported kernel. ``outside`` contains modules that receive only float values.
    ``inputs`` is the number of inputs in a call.
    """

    graph: Literal["eager", "fx"]
    borders: Literal["own", "around"]
    own_fusing: bool
    chains: tuple[Chain, ...]
    excluded: tuple[str, ...]
    outside: tuple[str, ...] = ()
    inputs: int = 1

    @property
    def float_paths(self) -> frozenset[str]:
        """Paths of the modules that stay in float, including all modules in excluded chains."""
        fused = (path for chain in self.chains if chain[0] in self.excluded for path in chain)
        return frozenset((*self.excluded, *fused))


def make_plan(model: nn.Module, spec: Spec, example_inputs: Mapping[str, torch.Tensor]) -> Plan:
    """Analyze a float model and choose how to quantize it.

    Raises
    ------
    QuantizationError
        An excluded module does not exist, or the requested graph mode cannot express the model.
    """
    excluded = _stay_float(model, spec.recipe.exclude)
    behavior = _beyond_kernels(model, excluded)
    own_stubs = spec.graph != "fx" and not behavior and any(isinstance(module, QuantStub) for module in model.modules())
    own_fusing = own_stubs and callable(getattr(model, "fuse_model", None))
    try:
        traced = trace(model, example_inputs, excluded)
    except QuantizationError:
        if not own_stubs:
            raise
        # The model itself defines where values are quantized and, with `fuse_model`, which modules are fused.
        return Plan("eager", "own", own_fusing, (), excluded, inputs=len(example_inputs))
    chains = find_chains(traced, is_qat=spec.training is not None)
    head_of = {path: chain[0] for chain in chains for path in chain}
    # If one module of a chain stays in float, the entire chain does too.
    stay_float = tuple(dict.fromkeys(head_of.get(name, name) for name in excluded))
    plan = Plan("fx", "around", False, chains, stay_float, inputs=len(example_inputs))
    if spec.graph == "fx":
        return plan
    if own_fusing:
        return replace(plan, graph="eager", borders="own", own_fusing=True)
    obstacle, _ = (behavior, ()) if behavior else _follow_quantized(traced, plan.float_paths, around=True)
    if own_stubs:
        own_obstacle, outside = _follow_quantized(traced, plan.float_paths, around=False)
        if not own_obstacle and (obstacle or not outside):
            return replace(plan, graph="eager", borders="own", outside=outside)
    if obstacle and spec.graph == "eager":
        raise QuantizationError(
            f"Eager-mode quantization does not support {type(model).__name__}: {obstacle}.",
            hint='Set graph = "auto", which uses FX graph mode where eager mode does not suffice.',
        )
    if obstacle or (spec.graph == "auto" and (has_functional_relu_to_fuse(traced) or _has_clamps(traced))):
        return plan
    return replace(plan, graph="eager")


def _stay_float(model: nn.Module, exclude: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of modules to keep in float: outermost excluded modules, then modules of `UNSUPPORTED` types."""
    excluded = excluded_modules(model, exclude)
    outermost = (name for name in exclude if not any(name.startswith(f"{other}.") for other in exclude))
    unsupported = (path for path, module in model.named_modules() if type(module) in UNSUPPORTED)
    return (*outermost, *(path for path in unsupported if path not in excluded))


def _beyond_kernels(model: nn.Module, excluded: Collection[str]) -> str:
    """Return the first module outside `excluded` that does more than its kernel, or "" if there is none.

    Raises
    ------
    QuantizationError
        The module is the model itself, whose `forward` alone is traced.
    """
    for path, module in model.named_modules():
        if (behavior := beyond_kernel(module)) and not is_within(path, excluded):
            if path:
                return f"{path} {behavior}"
            raise QuantizationError(
                f"{type(model).__name__} itself {behavior}, which static quantization would lose.",
                hint="Move this code into the `forward` of the class.",
            )
    return ""


def _follow_quantized(traced: Traced, float_paths: Collection[str], *, around: bool) -> tuple[str, tuple[str, ...]]:
    """Return the reason that eager mode cannot express the graph, and the modules that receive only float values.

    The reason is "" if eager mode can express the graph. Values are quantized at the model's inputs if `around` is
    true, and otherwise at the model's own stubs.
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
                and path not in float_paths
                and any(True for _ in module.parameters())
            ):
                outside.append(path)
        elif node in traced.ranks and node.op != "output":
            quantized.add(node)
            passes = node in observed or path in float_paths or isinstance(module, QuantStub | DeQuantStub)
            if not passes and (obstacle := _obstacle(node, module, traced.plain)):
                return obstacle, ()
    return "", tuple(outside)


def _obstacle(node: fx.Node, module: nn.Module | None, plain: Collection[str]) -> str:
    """Return the reason that eager mode cannot express an operation on quantized values, or "" if it can."""
    if node.target in plain:
        return f"forward calls a function with the parameters of {node.target}"
    if module is None:
        name = operation_name(node)
        passes = name in _PASSING_FUNCTIONS
        return "" if passes else f'the functional operation "{name}" (node {node.name}) has no observer'
    if isinstance(module, _PASSING_MODULES) or type(module) in _MAPPED - _UNMAPPED:
        return ""
    return f"there is no quantized kernel for module {node.target} of type {type(module).__name__}"


def _functionals(traced: Traced) -> set[fx.Node]:
    """Return the nodes of FloatFunctional modules, which have observers in eager mode."""
    nodes: set[fx.Node] = set()
    for node in traced.graph.nodes:
        parent, _, last = str(node.target).rpartition(".")
        owner = traced.modules.get(parent)
        if node.op == "call_module" and last == "activation_post_process" and isinstance(owner, FloatFunctional):
            source = node.all_input_nodes[0]
            nodes.update((node, source))
            # ``add_relu`` is traced as an addition and a ReLU.
            if operation_name(source) == "relu":
                nodes.update(source.all_input_nodes)
    return nodes


def find_chains(traced: Traced, *, is_qat: bool) -> tuple[Chain, ...]:
    """Find fusable chains: Conv-BN, Conv-BN-ReLU, Conv-ReLU, Linear-BN, Linear-ReLU, BN-ReLU and transposed Conv-BN.

    In a chain, each output has one consumer. Each module must be called only once, because fusing a module affects all
    its callers. Quantization-aware training omits transposed Conv-BN, because torch cannot train such a fused chain.
    """
    taken: set[str] = set()
    chains = []
    for node in traced.graph.nodes:
        line = list(islice(_line_from(node, traced, taken), 3))
        while line and not _is_fusable(line, traced, is_qat):
            line.pop()
        if line:
            chains.append(tuple(str(link.target) for link in line))
            taken.update(chains[-1])
    return tuple(chains)


def has_functional_relu_to_fuse(traced: Traced) -> bool:
    """Return whether the graph contains a functional ReLU that only FX graph mode can fuse."""
    return any(
        operation_name(node) in ("relu", "relu_") and type(traced.module_of(node.all_input_nodes[0])) in _BEFORE_RELU
        for node in traced.graph.nodes
        if node.op in ("call_function", "call_method") and node.all_input_nodes
    )


def _has_clamps(traced: Traced) -> bool:
    """Return whether FX graph mode must apply the range of a ReLU6 or Hardtanh to the preceding observer."""
    return any(isinstance(traced.module_of(node), nn.Hardtanh) for node in traced.graph.nodes)


def fuse_chains(model: nn.Module, chains: Sequence[Chain], *, is_qat: bool) -> None:
    """Fuse chains in place; for quantization-aware training, batch norms stay trainable inside the fused modules.

    The model must be in training mode for quantization-aware training and in evaluation mode otherwise.
    """
    if chains:
        fuse = fuse_modules_qat if is_qat else fuse_modules
        fuse(model, list(map(list, chains)), inplace=True)  # type: ignore[no-untyped-call]


def _line_from(node: fx.Node, traced: Traced, taken: Collection[str]) -> Iterator[fx.Node]:
    """Yield the nodes of the chain that begins at `node`.

    Each node in the chain calls a module outside `taken`, and is the only consumer of the previous node.
    """
    while node.op == "call_module" and traced.calls[str(node.target)] == 1 and str(node.target) not in taken:
        yield node
        if len(node.users) != 1:
            return
        (user,) = node.users
        if user.all_input_nodes != [node]:
            return
        node = user


def _is_fusable(line: Sequence[fx.Node], traced: Traced, is_qat: bool) -> bool:
    head, *followers = (traced.modules[str(node.target)] for node in line)
    if (type(head), *map(type, followers)) not in _KERNELS or (is_qat and isinstance(head, _TRANSPOSED)):
        return False
    norm = followers[0]
    if not isinstance(norm, _BatchNorm):
        return True
    if isinstance(head, nn.Linear) and (traced.ranks.get(line[1]) != 2 or norm.num_features != head.out_features):
        # For sequences, the norm's channels and the Linear layer's features are on different axes.
        return False
    return norm.affine and norm.track_running_stats
