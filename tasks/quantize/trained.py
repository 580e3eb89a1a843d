"""Convert a fine-tuned model for export: surround float operators with quantize and dequantize operators.

Inductor fuses them into oneDNN's int8 kernels. The ONNX export contains QuantizeLinear and DequantizeLinear, which ONNX
Runtime and OpenVINO fuse. A model is trained once, and all runtimes use the resulting int8 weights and ranges.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantizeBase
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from storage.errors import QuantizationError
from tasks.quantize.base import Trained
from tasks.quantize.engine import without_deprecations
from tasks.quantize.fine_tune import fine_tuned
from tasks.quantize.graph.convert import GraphConverter
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.source import ModelSource, refuse_non_finite_state
from tasks.quantize.spec import Spec

_ops = torch.ops.quantized_decomposed
_INT8 = -128, 127, torch.int8


class QatConverter(GraphConverter):
    """A converter that fine-tunes with simulated quantization."""

    def show_data(self, observing: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Fine-tune on a GPU if one is available, otherwise on the CPU."""
        fine_tuned(observing, spec, source)

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune the model or load an earlier result, then replace simulated quantization with actual rounding."""
        model = source.float_model()
        refuse_non_finite_state(model)
        with without_deprecations():
            prepared = prepare(model, spec, source.example_inputs)
            fine_tuned(prepared.observing, spec, source)
            trained = prepared.graph.eval()
            with torch.no_grad():
                _round_within(trained)
        return Trained(trained, prepared.folded)


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
    """A convolution or Linear layer with int8 weights, followed by ReLU if the trained module has it."""

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
        self.layer = layer
        layer.weight = None  # type: ignore[assignment]

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute in float with the dequantized int8 weights."""
        layer = self.layer
        if self.is_per_channel:
            weight = _ops.dequantize_per_channel(self.weight, self.scales, self.zero_points, 0, *_INT8)
        else:
            weight = _ops.dequantize_per_tensor(self.weight, *self.step)
        if isinstance(layer, _ConvNd):
            outputs = layer._conv_forward(inputs, weight, layer.bias)
        else:
            outputs = functional.linear(inputs, weight, layer.bias)
        return functional.relu(outputs) if self.has_relu else outputs


def _round_within(module: nn.Module) -> None:
    # Use `_modules`, because `named_children` yields a module only once, even if the module has two names.
    for name, child in module._modules.items():
        if child is None:
            continue
        if hasattr(child, "weight_fake_quant"):
            setattr(module, name, Int8Weight(child))
        elif isinstance(child, FakeQuantizeBase):
            setattr(module, name, Rounded.learned(child))
        elif isinstance(child, _DropoutNd):
            setattr(module, name, nn.Identity())  # dropout would separate a product from its rounded input
        else:
            _round_within(child)
