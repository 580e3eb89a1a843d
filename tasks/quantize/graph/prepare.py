"""Prepare a float model according to its plan: attach observers or fake quantization in eager mode or FX graph mode.

Eager mode fuses modules, and adds wrappers that convert between float and quantized values. FX graph mode rewrites the
graph, so that functions are observed and fused like modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import cast

import torch
from torch import fx, nn
from torch.ao import quantization
from torch.ao.quantization import DeQuantStub, FakeQuantizeBase, ObserverBase, QuantStub
from torch.ao.quantization.quantize_fx import fuse_fx, prepare_fx, prepare_qat_fx
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.coverage import is_within
from tasks.quantize.graph.observers import mapping_for, qconfig_for
from tasks.quantize.graph.plan import Plan, fuse_chains
from tasks.quantize.graph.trace import is_leaf, refusing, traced_module, without_floats
from tasks.quantize.spec import Spec


class QuantizedInside(nn.Module):
    """A wrapper that quantizes the floating-point inputs and dequantizes the outputs of a model without its own stubs.

    `example_inputs` contains one tensor per argument. Integer tensors are not changed.
    """

    def __init__(self, module: nn.Module, example_inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        # Each argument needs its own stub, because each argument has its own range.
        self.quants = nn.ModuleList(
            QuantStub() if tensor.is_floating_point() else nn.Identity() for tensor in example_inputs
        )
        self.module = module
        self.dequant = DeQuantStub()

    def forward(self, *inputs: torch.Tensor) -> object:
        """Quantize the inputs, call the model, and dequantize the outputs."""
        quantized = [quant(tensor) for quant, tensor in zip(self.quants, inputs, strict=True)]
        return _map_tensors(self.dequant, self.module(*quantized))


class FloatInside(nn.Module):
    """A float module in a quantized model, with dequantized inputs and quantized outputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.dequant = DeQuantStub()
        self.module = module
        self.quant = QuantStub()

    def forward(self, *inputs: object, **options: object) -> object:
        """Call the module with dequantized inputs."""
        values = (self.dequant(value) if isinstance(value, torch.Tensor) else value for value in inputs)
        return _map_tensors(self.quant, self.module(*values, **options))


class _FloatPReLU(nn.PReLU):
    """A PReLU subclass that torch leaves in float; torch quantizes each plain `nn.PReLU` between quantized values."""


def prepare(model: nn.Module, plan: Plan, spec: Spec, example_inputs: Mapping[str, torch.Tensor]) -> nn.Module:
    """Attach observers or fake quantization to a float model in the plan's graph mode, possibly in place.

    Raises
    ------
    QuantizationError
        torch cannot prepare the model, a convolution has uneven padding, or an excluded module cannot stay in float. A
        module cannot stay in float if `fuse_model` fused it, or if `forward` calls the module's methods instead of the
        module itself.
    """
    with refusing("prepared", type(model).__name__, plan.graph):
        prepare_mode = _prepare_graph if plan.graph == "fx" else _prepare_modules
        return prepare_mode(model, plan, spec, example_inputs)


def fuse(model: nn.Module, plan: Plan) -> nn.Module:
    """Fuse a float model's chains, either in place (eager mode) or in a graph module that shares the parameters."""
    if plan.graph == "eager":
        return _fuse_modules(model, plan, is_qat=False)
    _remove_stubs(model)
    traced, _ = traced_module(model.eval(), plan.inputs)
    return fuse_fx(traced)


def _prepare_modules(model: nn.Module, plan: Plan, spec: Spec, example_inputs: Mapping[str, torch.Tensor]) -> nn.Module:
    is_qat = spec.training is not None
    _pad_by_numbers(model, plan.float_paths)
    model = _fuse_modules(model, plan, is_qat=is_qat)
    if plan.borders == "around":
        _remove_stubs(model)
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    for module in (*embeddings, *map(model.get_submodule, plan.outside)):
        module.qconfig = None  # type: ignore[assignment]  # keeps it float
    for path in plan.excluded:
        _keep_float(model, path)
    if plan.borders == "around":
        model = QuantizedInside(model, example_inputs.values()).train(is_qat)
    model.qconfig = qconfig_for(spec)  # type: ignore[assignment]
    attach = quantization.prepare_qat if is_qat else quantization.prepare
    prepared: nn.Module = attach(model, inplace=True)
    return prepared


def _fuse_modules(model: nn.Module, plan: Plan, *, is_qat: bool) -> nn.Module:
    """Fuse a model in place; set training mode if `is_qat` is true, and evaluation mode otherwise."""
    model.train(is_qat)
    if not plan.own_fusing:
        fuse_chains(model, plan.chains, is_qat=is_qat)
        return model
    # Support torchvision's protocol for quantizable models, and the older protocol without `is_qat`.
    fuse_model = cast(Callable[..., None], model.fuse_model)
    parameters = inspect.signature(fuse_model).parameters
    if "is_qat" in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        fuse_model(is_qat=is_qat)
        return model
    # A `fuse_model` without `is_qat` folds batch norms, which requires evaluation mode. The model is then trained
    # without the folded batch norms.
    model.eval()
    fuse_model()
    return model.train(is_qat)


def _remove_stubs(model: nn.Module) -> None:
    """Replace every quant and dequant stub with an Identity."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, QuantStub | DeQuantStub):
            model.set_submodule(path, nn.Identity())


def _keep_float(model: nn.Module, path: str) -> None:
    module = model.get_submodule(path)
    if isinstance(module, nn.Identity) or hasattr(module, "activation_post_process"):
        raise QuantizationError(
            f"The module {path} alone cannot stay in float, because it was fused with another module or because "
            "`forward` calls its methods directly.",
            hint='Set graph = "fx".',
        )
    for inner in module.modules():
        inner.qconfig = None  # type: ignore[assignment]
    model.set_submodule(path, FloatInside(module))


def _map_tensors(border: Callable[[torch.Tensor], torch.Tensor], output: object) -> object:
    if isinstance(output, tuple | list):
        return tuple(_map_tensors(border, item) for item in output)
    if isinstance(output, torch.Tensor) and (output.is_quantized or output.is_floating_point()):
        return border(output)
    return output


def _prepare_graph(model: nn.Module, plan: Plan, spec: Spec, example_inputs: Mapping[str, torch.Tensor]) -> nn.Module:
    _remove_stubs(model)
    for module in model.modules():
        if type(module) is nn.PReLU:
            module.__class__ = _FloatPReLU
    mapping = mapping_for(spec)
    for path in sorted(plan.float_paths):
        mapping.set_module_name(path, None)
    inputs, is_qat = tuple(example_inputs.values()), spec.training is not None
    # A traced graph keeps only the branch that ``self.training`` selected. Trace non-leaf modules in evaluation mode,
    # so that the graph does not contain functional dropout or auxiliary heads.
    for module in model.train(is_qat).modules():
        module.training = is_qat and is_leaf(module) and not any(True for _ in module.children())
    traced, _ = traced_module(model, plan.inputs, plan.excluded, training=is_qat)
    _pad_by_numbers(traced, plan.float_paths)
    masks = without_floats(traced, inputs)
    prepared = prepare_qat_fx(traced, mapping, inputs).train() if is_qat else prepare_fx(traced, mapping, inputs)
    _observe_floats(prepared, masks)
    _observe_clamped(prepared)
    return prepared


def _observe_floats(prepared: fx.GraphModule, others: Collection[str]) -> None:
    """Remove the observers of nodes named in `others`, such as masks: torch observes operands whatever their type."""
    for node in list(prepared.graph.nodes):
        source = next(iter(node.all_input_nodes), None)
        if node.op != "call_module" or source is None or source.name not in others:
            continue
        if isinstance(prepared.get_submodule(str(node.target)), ObserverBase | FakeQuantizeBase):
            node.replace_all_uses_with(source)
            prepared.graph.erase_node(node)
    prepared.delete_all_unused_submodules()
    prepared.recompile()


def _observe_clamped(prepared: fx.GraphModule) -> None:
    """Limit observed values to the range of the activation function that follows the observer.

    torch fuses a ReLU into the preceding layer, but not a ReLU6 or Hardtanh. The preceding layer's range can be several
    times as wide as the activation's range. Without the limit, the activation would use only a few of the 256 steps.
    """
    for node in prepared.graph.nodes:
        if node.op != "call_module" or len(node.all_input_nodes) != 1:
            continue
        activation, before = prepared.get_submodule(str(node.target)), node.all_input_nodes[0]
        if not isinstance(activation, nn.Hardtanh) or before.op != "call_module" or len(before.users) != 1:
            continue
        observer = prepared.get_submodule(str(before.target))
        if isinstance(observer, ObserverBase | FakeQuantizeBase):
            low, high = activation.min_val, activation.max_val
            observer.register_forward_pre_hook(partial(_clamped, low, high))


def _clamped(low: float, high: float, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clamp(low, high) for tensor in inputs)


def _pad_by_numbers(model: nn.Module, float_paths: Collection[str]) -> None:
    """Replace the paddings ``"same"`` and ``"valid"`` with numbers, which torch's quantized convolutions require.

    Raises
    ------
    QuantizationError
        A convolution outside `float_paths` has uneven padding.
    """
    for path, module in model.named_modules():
        if not isinstance(module, _ConvNd) or not isinstance(module.padding, str):
            continue
        reaches = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation, strict=True)]
        if module.padding == "valid":
            module.padding = (0,) * len(reaches)
        elif not any(reach % 2 for reach in reaches):
            module.padding = tuple(reach // 2 for reach in reaches)
        elif not is_within(path, float_paths):
            # int8 kernels pad both sides equally, but ``"same"`` pads unequally if the kernel size is even.
            raise QuantizationError(
                f'The convolution {path} has an even kernel size, so int8 kernels cannot use padding="same".',
                hint=f'Add "{path}" to `exclude`, or pad the input of the convolution with nn.ZeroPad2d.',
            )
