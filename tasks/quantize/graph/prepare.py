"""Attach observers or fake quantization to the graph of a float model (torch's FX graph mode).

The engine, not the recipe, determines whether activations use 7 or 8 bits (``reduce_range``). On processors without
VNNI, the ``x86``, ``fbgemm`` and ``onednn`` engines multiply with ``vpmaddubsw``, whose 16-bit sums saturate if
activations use 8 bits. PyTorch uses 7 bits for ``x86`` and ``fbgemm`` on every processor, but 8 bits for ``onednn``.
Without VNNI, nightquant uses 7 bits for ``onednn`` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx, nn
from torch.ao import quantization
from torch.ao.quantization import DeQuantStub, FakeQuantizeBase, ObserverBase, QConfig, QConfigMapping, QuantStub
from torch.ao.quantization.fx.utils import assert_and_get_unique_device
from torch.ao.quantization.observer import UniformQuantizationObserverBase
from torch.ao.quantization.quantize_fx import fuse_fx, prepare_fx, prepare_qat_fx
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.coverage import excluded_modules, own_behavior
from tasks.quantize.engine import saturates
from tasks.quantize.graph.trace import is_leaf, pads_unevenly, traced_module, without_floats
from tasks.quantize.source import refusing
from tasks.quantize.spec import EVERY, Spec

_FOLDING = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear
)  # fmt: skip
_ACTIVATION_OBSERVERS: dict[str, type[UniformQuantizationObserverBase]] = {
    "min-max": quantization.MinMaxObserver,
    "moving-average": quantization.MovingAverageMinMaxObserver,
    "histogram": quantization.HistogramObserver,
}
_WEIGHT_OBSERVERS = {
    "channel": quantization.default_per_channel_weight_observer,
    "tensor": quantization.default_weight_observer,
}
_WEIGHT_FAKE_QUANTS = {
    "channel": quantization.default_fused_per_channel_wt_fake_quant,
    "tensor": quantization.default_fused_wt_fake_quant,
}

_TRANSPOSED = "torch's quantized kernels for transposed convolutions are wrong for some shapes"
# Modules of these types always stay in float, because torch's int8 kernels for these types are faulty. For transposed
# convolutions with a kernel size and stride of 2 (the usual upsampling), fbgemm's kernels write outside their buffers.
# The ``onednn`` kernels for transposed convolutions return wrong results if the numbers of input and output channels
# differ. The quantized PReLU rounds negative slopes to 0, and supports only one slope for all channels. The
# state dict of a quantized PReLU lacks the weight and the range.
UNSUPPORTED: dict[type[nn.Module], str] = {
    nn.ConvTranspose1d: _TRANSPOSED,
    nn.ConvTranspose2d: _TRANSPOSED,
    nn.ConvTranspose3d: _TRANSPOSED,
    nn.PReLU: "torch's quantized PReLU loses negative slopes and cannot be saved",
    nn.ELU: "torch's quantized ELU cannot be saved",
}
# Functions stay in float as well, because torch cannot fuse them or load their packed weights.
_UNSUPPORTED_FUNCTIONS = (
    functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
    functional.conv1d, functional.conv2d, functional.conv3d, functional.linear,
)  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """A traced model with observers.

    ``graph`` is to be converted, after ``observing`` was calibrated or trained. Both share all modules, but
    ``observing`` calls each observer once: values that pass through a pooling, for example, are not observed again.
    ``folded`` maps the path of each folded batch norm to the path of the layer into which it was folded.
    """

    graph: fx.GraphModule
    observing: fx.GraphModule
    folded: Mapping[str, str]
    excluded: frozenset[str]


class _FloatPReLU(nn.PReLU):
    """A PReLU subclass that torch leaves in float; torch quantizes each plain `nn.PReLU` between quantized values."""


def prepare(model: nn.Module, spec: Spec, example_inputs: Mapping[str, torch.Tensor]) -> Prepared:
    """Attach observers or fake quantization to a float model, possibly in place."""
    excluded = excluded_modules(model, spec.exclude)
    if behavior := own_behavior(model):
        raise QuantizationError(
            f"{type(model).__name__} {behavior}, which static quantization would drop.",
            hint="Move this code into the `forward` method of the class.",
        )
    with refusing(f"{type(model).__name__} cannot be prepared"):
        return _prepared(model, spec, excluded, tuple(example_inputs.values()))


def fuse(model: nn.Module, inputs: int) -> nn.Module:
    """Fuse a float model's layers in a graph module that shares the parameters."""
    _remove_stubs(model)
    return fuse_fx(traced_module(model.eval(), inputs))


@contextmanager
def forgetting_models(*more: Callable[..., object]) -> Iterator[None]:
    """Empty the cache in which torch 2.15 looks up a model's device, and those of `more`; they keep every model."""
    try:
        yield
    finally:
        for cached in (assert_and_get_unique_device, *more):
            cached.cache_clear()  # type: ignore[attr-defined]


def _prepared(model: nn.Module, spec: Spec, excluded: frozenset[str], inputs: tuple[torch.Tensor, ...]) -> Prepared:
    _remove_stubs(model)
    for module in model.modules():
        if type(module) is nn.PReLU:
            module.__class__ = _FloatPReLU
    unsupported = {path for path, module in model.named_modules() if type(module) in UNSUPPORTED}
    is_qat = spec.training is not None
    # A traced graph keeps only the branch that ``self.training`` selected. Trace non-leaf modules in evaluation mode,
    # so that the graph does not contain functional dropout or auxiliary heads.
    for module in model.train(is_qat).modules():
        module.training = is_qat and is_leaf(module) and not any(True for _ in module.children())
    traced = traced_module(model, len(inputs), excluded | unsupported)
    folded = dict(_folded(traced))
    # If a batch norm stays in float, the layer into which it is folded does too.
    stay_float = excluded | unsupported
    stay_float |= {layer for norm, layer in folded.items() if norm in stay_float}
    mapping = mapping_for(spec)
    for path in sorted(stay_float):
        mapping.set_module_name(path, None)
    _pad_by_numbers(traced)
    masks = without_floats(traced, inputs)
    with forgetting_models():
        prepared = prepare_qat_fx(traced, mapping, inputs).train() if is_qat else prepare_fx(traced, mapping, inputs)
    _observe_floats(prepared, masks)
    _observe_clamped(prepared)
    return Prepared(prepared, _observing_once(prepared), folded, excluded)


def _folded(traced: fx.GraphModule) -> Iterator[tuple[str, str]]:
    """Yield the path of each batch norm that directly follows a convolution or Linear layer, and the layer's path."""
    for node in traced.graph.nodes:
        if node.op == "call_module" and isinstance(traced.get_submodule(str(node.target)), _BatchNorm):
            (before,) = node.all_input_nodes
            is_module = before.op == "call_module" and len(before.users) == 1
            if is_module and type(traced.get_submodule(str(before.target))) in _FOLDING:
                yield str(node.target), str(before.target)


def _remove_stubs(model: nn.Module) -> None:
    """Replace every quant and dequant stub with an Identity."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, QuantStub | DeQuantStub):
            model.set_submodule(path, nn.Identity())


def _observers(graph: fx.GraphModule) -> Iterator[tuple[fx.Node, nn.Module]]:
    for node in list(graph.graph.nodes):
        if node.op == "call_module":
            module = graph.get_submodule(str(node.target))
            if isinstance(module, ObserverBase | FakeQuantizeBase):
                yield node, module


def _observing_once(prepared: fx.GraphModule) -> fx.GraphModule:
    """Return a graph module with the same modules that calls each observer only at its first place."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(prepared.graph, {}))
    observing, seen = fx.GraphModule(prepared, graph), set[nn.Module]()
    for node, observer in _observers(observing):
        if observer in seen:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
        seen.add(observer)
    observing.recompile()
    return observing


def _observe_floats(prepared: fx.GraphModule, others: Collection[str]) -> None:
    """Remove the observers of nodes named in `others`, such as masks: torch observes operands whatever their type."""
    for node, _ in _observers(prepared):
        source = node.all_input_nodes[0]
        if source.name in others:
            node.replace_all_uses_with(source)
            prepared.graph.erase_node(node)
    prepared.delete_all_unused_submodules()
    prepared.recompile()


def _observe_clamped(prepared: fx.GraphModule) -> None:
    """Limit observed values to the range of the ReLU6 or Hardtanh that follows the observer.

    torch does not fuse such an activation into the preceding layer, whose range can be several times as wide. Without
    the limit, the activation would use only a few of the 256 steps.
    """
    for node, observer in _observers(prepared):
        following = [user.target for user in node.users if user.op == "call_module"]
        if len(node.users) == len(following) == 1:
            activation = prepared.get_submodule(str(following[0]))
            if isinstance(activation, nn.Hardtanh):
                observer.register_forward_pre_hook(partial(_clamped, activation.min_val, activation.max_val))


def _clamped(low: float, high: float, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clamp(low, high) for tensor in inputs)


def _pad_by_numbers(model: nn.Module) -> None:
    """Replace the paddings ``"same"`` and ``"valid"`` with numbers, which torch's quantized convolutions require."""
    for module in model.modules():
        if isinstance(module, _ConvNd) and isinstance(module.padding, str) and not pads_unevenly(module):
            sizes = zip(module.kernel_size, module.dilation, strict=True)
            is_same = module.padding == "same"
            module.padding = tuple(dilation * (size - 1) // 2 if is_same else 0 for size, dilation in sizes)


def reduces_range(engine: str | None) -> bool:
    """Return whether activations for an engine use only 7 of their 8 bits on this processor."""
    if engine is None:
        return False
    default = quantization.get_default_qconfig(engine)  # type: ignore[no-untyped-call]
    return bool(default.activation().reduce_range) or saturates(engine)


def qconfig_for(spec: Spec) -> QConfig:
    """Return a `QConfig` for a spec's engine, with observers for calibration or fake-quantize modules for training."""
    reduced, granularity = {"reduce_range": reduces_range(spec.engine)}, spec.layers[EVERY].granularity
    if spec.calibration is not None:
        activation = _ACTIVATION_OBSERVERS[spec.calibration.observer].with_args(**reduced)
        weight = _WEIGHT_OBSERVERS[granularity]
    else:
        default = quantization.get_default_qat_qconfig(spec.engine)  # type: ignore[no-untyped-call]
        activation, weight = default.activation.with_args(**reduced), _WEIGHT_FAKE_QUANTS[granularity]
    return QConfig(activation=activation, weight=weight)  # type: ignore[no-untyped-call]


def mapping_for(spec: Spec) -> QConfigMapping:
    """Return the `QConfigMapping` for FX graph mode: the engine's default mapping with the spec's observers."""
    qconfig = qconfig_for(spec)
    static = spec.training is None
    make_default = quantization.get_default_qconfig_mapping if static else quantization.get_default_qat_qconfig_mapping
    mapping = make_default(spec.engine)
    default = mapping.global_qconfig
    for kind, type_qconfig in mapping.object_type_qconfigs.items():
        if type_qconfig == default:
            mapping.set_object_type(kind, qconfig)
    untrusted: tuple[Callable[..., object], ...] = (*UNSUPPORTED, *_UNSUPPORTED_FUNCTIONS)
    for operation in untrusted:
        mapping.set_object_type(operation, None)
    return mapping.set_global(qconfig)
