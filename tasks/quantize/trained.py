"""Quantization-aware training: fine-tune a prepared model once, and convert the result for all runtimes.

The method follows Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2018). Training uses fake quantization, and freezes the ranges and the batch-norm statistics towards the
end. The last epochs adapt the weights to the converted model's arithmetic.

For export, float operators are surrounded with quantize and dequantize operators. Inductor fuses them into oneDNN's
int8 kernels. The ONNX export contains QuantizeLinear and DequantizeLinear, which ONNX Runtime and OpenVINO fuse.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.quantization import FakeQuantizeBase
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from storage.errors import QuantizationError
from tasks.data.outputs import training_device
from tasks.data.tensor_files import save_tensors
from tasks.data.training import FineTuning, OwnTraining
from tasks.environment.sources import code_digest
from tasks.quantize.engine import without_deprecations
from tasks.quantize.graph.convert import GraphConverter
from tasks.quantize.graph.prepare import prepare, reduces_range
from tasks.quantize.source import ModelSource, Trained, batches_of
from tasks.quantize.spec import Calibration, Spec, Training
from tasks.values.job import Progress

KIND = "fine-tuned"
WEIGHTS = "weights.safetensors"
_FIRST_RANGES_BATCHES = 8
_ops = torch.ops.quantized_decomposed
_INT8 = -128, 127, torch.int8


class QatConverter(GraphConverter):
    """A converter that fine-tunes with simulated quantization."""

    def show_data(self, observing: nn.Module, spec: Spec, source: ModelSource) -> None:
        """Fine-tune on a GPU if one is available, otherwise on the CPU."""
        fine_tuned(observing, spec, source)

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune the model or load an earlier result, then replace simulated quantization with actual rounding."""
        with without_deprecations():
            prepared = prepare(source.float_model(), spec, source.example_inputs)
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


def fine_tuned(prepared: nn.Module, spec: Spec, source: ModelSource) -> nn.Module:
    """Train a model with fake quantization, or load an identical earlier result; return it on the CPU."""
    training, recipe, data, workspace = spec.training, spec.name, source.fine_tuning, source.workspace
    assert training is not None
    assert data is not None  # validation rejects a workload without training data
    tuning = data(training.batch_size)
    own = tuning if isinstance(tuning, OwnTraining) else None
    device = torch.device("cpu") if own else training_device()
    made_from = {
        **source.made_from,
        "spec": spec.content(),
        "reduces_range": reduces_range(spec.engine),
        "weights": hashlib.sha256(save(_copied(prepared.state_dict()))).hexdigest(),
        "device": device.type,
        "training": code_digest(__name__, "tasks.quantize.graph.convert", data.func),
        "own": own.made_from if own else {},
    }

    def make(folder: Path) -> None:
        _find_first_ranges(prepared.to(device), source, training.batch_size, device)
        if isinstance(tuning, OwnTraining):
            best = _train_by_callable(prepared, training, tuning, workspace.progress)
        else:
            best = fine_tune(prepared, recipe, training, tuning, device, workspace.progress)
        save_tensors(best, folder / WEIGHTS)

    folder = workspace.find_or_make(KIND, made_from, make)
    prepared.load_state_dict(load_file(folder / WEIGHTS))
    return prepared.cpu().eval()


def fine_tune(
    model: nn.Module, recipe: str, training: Training, tuning: FineTuning, device: torch.device, progress: Progress
) -> dict[str, Tensor]:
    """Train a model; return the state dict of the epoch with the highest score or, among equals, the lowest loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
    best: tuple[float, float, dict[str, Tensor]] | None = None
    steps = training.epochs * tuning.steps_per_epoch
    for epoch in range(training.epochs):
        _to_training(model, training, epoch)
        seed = training.seed * 1_000_003 + epoch
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            batches = tuning.batches(torch.Generator().manual_seed(seed))
            for step, (inputs, target) in enumerate(batches, start=1 + epoch * tuning.steps_per_epoch):
                loss = tuning.loss(model(*(tensor.to(device) for tensor in inputs)), target.to(device))
                if not torch.isfinite(loss):
                    raise QuantizationError(
                        f'Training of recipe "{recipe}" diverged in epoch {epoch + 1}: the loss is {loss.item()}.',
                        hint="Lower the recipe's `learning_rate`.",
                    )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                progress(step, steps, f"training batches, loss {loss.item():.3f}")
        model.eval()
        model.apply(quantization.disable_observer)
        with torch.no_grad():
            score, loss_after = tuning.validate(model, device)
        if best is None or (score, -loss_after) > best[:2]:
            best = score, -loss_after, _copied(model.state_dict())
    assert best is not None
    return best[2]


def _train_by_callable(
    model: nn.Module, training: Training, tuning: OwnTraining, progress: Progress
) -> dict[str, Tensor]:
    """Train with the user's callable, which is called again when ranges and statistics are frozen."""
    for start, stop in pairwise(sorted({0, _frozen_from(training), training.epochs})):
        progress(start, training.epochs, "epochs")
        _to_training(model, training, start)
        tuning.train(model, training.seed + start, stop - start)
    return _copied(model.state_dict())


def _find_first_ranges(model: nn.Module, source: ModelSource, batch_size: int, device: torch.device) -> None:
    """Run calibration samples through the observers, so that the first training step has realistic ranges."""
    model.eval()
    model.apply(quantization.disable_fake_quant)
    model.apply(quantization.enable_observer)
    with torch.no_grad():
        for inputs in batches_of(source, Calibration("moving-average", _FIRST_RANGES_BATCHES, batch_size)):
            model(*(tensor.to(device) for tensor in inputs))
    model.apply(quantization.enable_fake_quant)


def _to_training(model: nn.Module, training: Training, epoch: int) -> None:
    """Put the model into training mode; freeze ranges and batch-norm statistics in the second half of the epochs."""
    model.train()
    is_frozen = epoch >= _frozen_from(training)
    model.apply(quantization.disable_observer if is_frozen else quantization.enable_observer)
    if is_frozen:
        model.apply(_freeze_batch_norm)


def _frozen_from(training: Training) -> int:
    """Return the first epoch with frozen ranges and statistics; a single epoch is not frozen."""
    return math.ceil(training.epochs / 2)


def _freeze_batch_norm(module: nn.Module) -> None:
    if hasattr(module, "freeze_bn_stats"):
        module.freeze_bn_stats()  # type: ignore[operator]
    elif isinstance(module, _BatchNorm):
        module.eval()


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy the tensors to separate CPU memory, because safetensors cannot write tensors that share memory."""
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
