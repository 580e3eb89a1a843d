"""A fine-tuned model in the form that exporters take: float operators between pairs of quantize and dequantize.

The pairs are operators of torch's namespace ``quantized_decomposed``. Inductor fuses them and what lies between into
oneDNN's int8 kernels; in ONNX they are QuantizeLinear and DequantizeLinear, which ONNX Runtime and OpenVINO fuse. So a
model is trained once for all runtimes, and all get the int8 weights and the ranges that torch's own kernels get.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantizeBase
from torch.ao.quantization.quantize import _observer_forward_hook
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from storage.errors import QuantizationError
from tasks.quantize.base import Converted, Trained
from tasks.quantize.calibration import refuse_non_finite_state
from tasks.quantize.engine import without_deprecations
from tasks.quantize.fine_tune import fine_tuned
from tasks.quantize.graph.convert import GraphConverter, quantize_as_planned
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import FloatInside, QuantizedInside, prepare
from tasks.quantize.rounded import Rounded, round_result, round_what_passes
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec

_ops = torch.ops.quantized_decomposed
_INT8 = -128, 127, torch.int8


class QatConverter(GraphConverter):
    """Simulates quantization, fine-tunes and converts."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Fine-tune on a GPU if there is one, else on the CPU; go on from the last epoch that was finished.

        Raises what static quantization and `fine_tuned` do.
        """
        refuse_non_finite_state(model)
        plan = make_plan(model, spec, source.example_inputs)
        return quantize_as_planned(model, plan, spec, source, lambda prepared: fine_tuned(prepared, spec, source))

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune, or find what was fine-tuned before, and round in earnest what training simulated.

        Raises
        ------
        QuantizationError
            torch cannot prepare the model, training diverges, or a module was trained that has no such form.
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
                round_what_passes(trained, int8, source.example_inputs.values())
        folded = {path: chain[0] for chain in plan.chains for path in chain[1:]}
        return Trained(trained.eval(), plan.graph, dict(_float_paths(trained)), folded)


class Int8Weight(nn.Module):
    """A convolution or Linear layer with int8 weights, and the ReLU and the rounding that follow it."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        # Batch norms are folded in; with a ReLU it is a sequence.
        layers: nn.Module = trained.to_float()  # type: ignore[operator]
        self.has_relu = isinstance(layers, nn.Sequential)
        layer = layers[0] if isinstance(layers, nn.Sequential) else layers
        if not isinstance(layer, _ConvNd | nn.Linear):
            raise QuantizationError(
                f"A trained {type(layer).__name__} has no form with int8 weights that can be exported.",
                hint="Name it in exclude, or use the runtime torchscript for it.",
            )
        simulated = trained.weight_fake_quant
        assert isinstance(simulated, FakeQuantizeBase)
        weight = layer.weight.detach()
        simulated(weight)  # as torch's conversion does: it gives scales their shape
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
        """Compute in float with what the int8 weights stand for."""
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
    # Not named_children, which leaves out what was named before.
    for name, child in module._modules.items():
        if child is None:
            continue
        if hasattr(child, "weight_fake_quant"):
            setattr(module, name, Int8Weight(child))
        elif isinstance(child, FakeQuantizeBase):
            if child.dtype == torch.qint8:
                raise QuantizationError(
                    "The weights that forward gives to a function have no trained form that can be exported.",
                    hint="Let a module of their own call the function, or use the runtime torchscript for the recipe.",
                )
            setattr(module, name, Rounded.learned(child))
            for key, hook in module._forward_hooks.items():
                if hook is _observer_forward_hook:
                    module._forward_hooks[key] = round_result
        elif isinstance(child, _DropoutNd):
            setattr(module, name, nn.Identity())  # it would stand between a product and its rounded input
        else:
            _round_within(child)


def _float_paths(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Every module's path, and the one that it has in the float model, without the borders that training put around."""
    found: dict[str, str] = {}
    for path, _ in model.named_modules():
        above, _, last = path.rpartition(".")
        is_border = last == "module" and isinstance(model.get_submodule(above), QuantizedInside | FloatInside)
        found[path] = found.get(above, "") if is_border else f"{found.get(above, '')}.{last}".lstrip(".")
        yield path, found[path]
