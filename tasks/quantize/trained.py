"""Convert a fine-tuned model for export: surround float operators with quantize and dequantize operators.

The quantize and dequantize operators are in torch's namespace ``quantized_decomposed``. Inductor fuses quantize, float
and dequantize operators into oneDNN's int8 kernels. The ONNX export contains QuantizeLinear and DequantizeLinear, which
ONNX Runtime and OpenVINO fuse. A model is trained once, and all runtimes use the resulting int8 weights and ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, FakeQuantizeBase
from torch.ao.quantization.quantize import _observer_forward_hook
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from storage.errors import QuantizationError
from tasks.quantize.base import Trained
from tasks.quantize.engine import without_deprecations
from tasks.quantize.fine_tune import fine_tuned
from tasks.quantize.graph.convert import GraphConverter
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import FloatInside, QuantizedInside, prepare
from tasks.quantize.source import ModelSource, refuse_non_finite_state
from tasks.quantize.spec import Spec

_ops = torch.ops.quantized_decomposed
_INT8 = -128, 127, torch.int8


class QatConverter(GraphConverter):
    """A converter that fine-tunes with simulated quantization."""

    def show_data(self, prepared: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Fine-tune on a GPU if one is available, otherwise on the CPU; resume after the last complete epoch."""
        fine_tuned(prepared, spec, source)

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune the model or load an earlier result, then replace simulated quantization with actual rounding.

        Raises
        ------
        QuantizationError
            torch cannot prepare the model, training diverges, or a trained module cannot be exported.
        """
        model = source.float_model()
        refuse_non_finite_state(model)
        with without_deprecations(), torch.no_grad():
            plan = make_plan(model, spec, source.example_inputs)
            with torch.enable_grad():
                trained = fine_tuned(prepare(model, plan, spec, source.example_inputs), spec, source)
            _round_within(trained)
            if plan.graph == "eager":
                int8 = [module for module in trained.modules() if isinstance(module, Int8Weight)]
                round_passed_values(trained, int8, source.example_inputs.values())
        folded = {path: chain[0] for chain in plan.chains for path in chain[1:]}
        return Trained(trained.eval(), plan.graph, dict(_float_paths(trained)), folded)


class Rounded(nn.Module):
    """A module that rounds activations to the 256 steps of a range, without changing shape or dtype."""

    def __init__(self, scale: float, zero_point: int) -> None:
        super().__init__()
        # Use all 256 steps, as torch's kernels do, even if training left the highest bit unused.
        self.step = scale, zero_point, 0, 255, torch.uint8

    @classmethod
    def learned(cls, simulated: FakeQuantizeBase) -> Self:
        """Create a module with the range that a fake-quantize module learned."""
        scale, zero_point = simulated.calculate_qparams()  # type: ignore[no-untyped-call]
        return cls(float(scale), int(zero_point))

    def forward(self, values: Tensor) -> Tensor:
        """Quantize and dequantize."""
        rounded: Tensor = _ops.dequantize_per_tensor(_ops.quantize_per_tensor(values, *self.step), *self.step)
        return rounded


class Int8Weight(nn.Module):
    """A convolution or Linear layer with int8 weights, followed by ReLU and rounding if the trained module has them."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        # `to_float` folds batch norms into the layer, and returns an `nn.Sequential` if there is a ReLU.
        layers: nn.Module = trained.to_float()  # type: ignore[operator]
        self.has_relu = isinstance(layers, nn.Sequential)
        layer = layers[0] if isinstance(layers, nn.Sequential) else layers
        if not isinstance(layer, _ConvNd | nn.Linear):
            raise QuantizationError(
                f"A trained {type(layer).__name__} cannot be exported with int8 weights.",
                hint="Use the torchscript runtime.",
            )
        simulated = trained.weight_fake_quant
        assert isinstance(simulated, FakeQuantizeBase)
        weight = layer.weight.detach()
        simulated(weight)  # this call sets the shape of the scales, as in torch's conversion
        scales, zero_points = simulated.calculate_qparams()  # type: ignore[no-untyped-call]
        self.is_per_channel = bool(simulated.is_per_channel)
        if self.is_per_channel:
            self.register_buffer("scales", scales.float())
            self.register_buffer("zero_points", zero_points.to(torch.int64))
            step = self.scales, self.zero_points, 0, *_INT8
            self.register_buffer("weight", _ops.quantize_per_channel(weight, *step))
        else:
            self.step = float(scales), int(zero_points), *_INT8
            self.register_buffer("weight", _ops.quantize_per_tensor(weight, *self.step))
        self.before: nn.Module = nn.Identity()
        self.layer = layer
        layer.weight = None  # type: ignore[assignment]
        observer = getattr(trained, "activation_post_process", None)
        self.rounded = Rounded.learned(observer) if isinstance(observer, FakeQuantizeBase) else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute in float with the dequantized int8 weights."""
        inputs, layer = self.before(inputs), self.layer
        if self.is_per_channel:
            weight = _ops.dequantize_per_channel(self.weight, self.scales, self.zero_points, 0, *_INT8)
        else:
            weight = _ops.dequantize_per_tensor(self.weight, *self.step)
        if isinstance(layer, _ConvNd):
            outputs = layer._conv_forward(inputs, weight, layer.bias)
        else:
            outputs = functional.linear(inputs, weight, layer.bias)
        rounded: Tensor = self.rounded(functional.relu(outputs) if self.has_relu else outputs)
        return rounded


def _round_within(module: nn.Module) -> None:
    # Use `_modules`, because `named_children` yields a module only once, even if the module has two names.
    for name, child in module._modules.items():
        if child is None:
            continue
        if hasattr(child, "weight_fake_quant"):
            setattr(module, name, Int8Weight(child))
        elif isinstance(child, FakeQuantizeBase):
            if child.dtype == torch.qint8:
                raise QuantizationError(
                    "Trained weights that `forward` passes to a function cannot be exported.",
                    hint="Replace the function with a module such as nn.Linear, or use the torchscript runtime.",
                )
            setattr(module, name, Rounded.learned(child))
            for key, hook in module._forward_hooks.items():
                if hook is _observer_forward_hook:
                    module._forward_hooks[key] = _round_result
        elif isinstance(child, _DropoutNd):
            setattr(module, name, nn.Identity())  # dropout would separate a product from its rounded input
        else:
            _round_within(child)


def _round_result(module: nn.Module, inputs: object, result: Tensor) -> Tensor:
    """Round a module's result; torch.export can trace this forward hook, but not torch's own hook."""
    rounded: Tensor = module.activation_post_process(result)  # type: ignore[operator]
    return rounded


def _float_paths(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the path of each module, and its path in the float model, which lacks the added wrappers."""
    paths: dict[str, str] = {}
    for path, _ in model.named_modules():
        above, _, last = path.rpartition(".")
        is_border = last == "module" and isinstance(model.get_submodule(above), QuantizedInside | FloatInside)
        paths[path] = paths.get(above, "") if is_border else f"{paths.get(above, '')}.{last}".lstrip(".")
        yield path, paths[path]


def round_passed_values(model: nn.Module, consumers: Iterable[nn.Module], inputs: Iterable[Tensor]) -> None:
    """Add rounding to an eager-mode model, after modules that have no range of their own and before `consumers`.

    In eager mode, pooling, reshaping and similar operations return values with the same range as their input.
    Exporters need the range of each result, which an eager-mode model does not store. In each consumer, the function
    sets the attribute `before` to a `Rounded` module. A module whose calls have different ranges is left unchanged.
    """
    consumers, origins_of = set(consumers), defaultdict[nn.Module, set[Rounded | None]](set)
    follow = _Follow()

    def see(module: nn.Module, value: object) -> None:
        if isinstance(value, Tensor) and (origin := follow.origins.get(value)) is not None:
            origins_of[module].add(None if value in follow.rounded else origin)
            follow.rounded[value] = True  # the loop over `origins_of` adds the rounding

    def see_result(module: nn.Module, _: object, result: Tensor) -> Tensor | None:
        if isinstance(module, Rounded):
            follow.origins[result], follow.rounded[result] = module, True
        elif isinstance(module, DeQuantStub):
            result = result.clone()  # values are float from here on
            follow.origins.pop(result, None)
            return result
        else:
            see(module, result)
        return None

    bare = (module for module in model.modules() if not module._modules and not module._parameters)
    handles = [product.register_forward_pre_hook(lambda module, args: see(module, args[0])) for product in consumers]
    handles += [module.register_forward_hook(see_result) for module in bare]
    with torch.no_grad(), follow:
        model(*inputs)
    for handle in handles:
        handle.remove()
    for module, origins in origins_of.items():
        origin = origins.pop()
        if origin is None or origins:
            continue
        rounded = Rounded(*origin.step[:2])
        if module in consumers:
            module.before = rounded
        else:
            module.activation_post_process = rounded
            module.register_forward_hook(_round_result)


class _Follow(TorchFunctionMode):
    """A torch mode that records where each tensor was last rounded, and which tensors have not changed since."""

    def __init__(self) -> None:
        super().__init__()
        # The keys are weak references to tensors. The type is Any, because torch's dictionary lacks type hints.
        self.origins: Any = WeakIdKeyDictionary()
        self.rounded: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        inputs = (value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor))
        origin = next(filter(None, map(self.origins.get, inputs)), None)
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and origin is not None and value not in self.origins:
                self.origins[value] = origin
        return result
