"""Quantization-aware training: fine-tune a prepared model once, and store the result for all runtimes.

The method follows Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2018). Training uses fake quantization, and freezes the ranges and the batch-norm statistics towards the
end. The last epochs adapt the weights to the converted model's arithmetic.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.ao.quantization import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer
from torch.nn.modules.batchnorm import _BatchNorm

from storage.errors import QuantizationError
from tasks.data.training import FineTuning, OwnTraining
from tasks.job import Progress
from tasks.outputs import training_device
from tasks.quantize.graph.observers import reduces_range
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, Training
from tasks.sources import code_digest
from tasks.tensor_files import save_tensors

KIND = "fine-tuned"
WEIGHTS = "weights.safetensors"
_FIRST_RANGES_BATCHES = 8


def fine_tuned(prepared: nn.Module, spec: Spec, source: ModelSource) -> nn.Module:
    """Train a model that contains fake quantization, or load the result of an identical earlier training run.

    Return the model on the CPU in evaluation mode, with the weights and ranges of the best epoch.
    """
    training, recipe, data, workspace = spec.training, spec.recipe.name, source.fine_tuning, source.workspace
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
        _find_first_ranges(prepared.to(device), recipe, source.calibration_batches(training.batch_size), device)
        if isinstance(tuning, OwnTraining):
            best = _train_by_callable(prepared, recipe, training, tuning, workspace.progress)
        else:
            best = fine_tune(prepared, recipe, training, tuning, device, workspace.progress)
        save_tensors(best, folder / WEIGHTS)

    folder = workspace.find_or_make(KIND, made_from, make)
    prepared.load_state_dict(load_file(folder / WEIGHTS))
    return prepared.cpu().eval()


def fine_tune(
    model: nn.Module, recipe: str, training: Training, tuning: FineTuning, device: torch.device, progress: Progress
) -> dict[str, Tensor]:
    """Train a prepared model; return the state dict of the best epoch, with tensors on the CPU.

    The best epoch has the highest score or, among equal scores, the lowest loss. On the same kind of processor and with
    the same number of threads, equal seeds give equal results.
    """
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
                loss = _loss_of(model, tuning, inputs, target, device)
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
        model.apply(disable_observer)
        with torch.no_grad():
            score, loss_after = tuning.validate(model, device)
        if best is None or (score, -loss_after) > best[:2]:
            best = score, -loss_after, _copied(model.state_dict())
    assert best is not None
    return best[2]


def _loss_of(
    model: nn.Module, tuning: FineTuning, inputs: Iterable[Tensor], target: Tensor, device: torch.device
) -> Tensor:
    try:
        return tuning.loss(model(*(tensor.to(device) for tensor in inputs)), target.to(device))
    except RuntimeError as error:
        # Fake quantization raises an error about `zero_point` if weights are infinite.
        if "`zero_point` must be between" not in str(error):
            raise
        return torch.tensor(math.nan)


def _train_by_callable(
    model: nn.Module, recipe: str, training: Training, tuning: OwnTraining, progress: Progress
) -> dict[str, Tensor]:
    """Train with the user's callable, which is called again each time ranges or statistics are frozen."""
    frozen = (
        min(after, training.epochs) for after in (training.freeze_observers_after, training.freeze_batch_norm_after)
    )
    for start, stop in pairwise(sorted({0, *frozen, training.epochs})):
        progress(start, training.epochs, "epochs")
        _to_training(model, training, start)
        tuning.train(model, training.seed + start, stop - start)
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise QuantizationError(
                f'Training of recipe "{recipe}" diverged: the parameter "{name}" contains NaN or infinities.',
                hint="Lower the learning rate in your training function.",
            )
    return _copied(model.state_dict())


def _find_first_ranges(
    model: nn.Module, recipe: str, calibration: Iterable[tuple[Tensor, ...]], device: torch.device
) -> None:
    """Run calibration samples through the observers, so that the first training step has realistic ranges."""
    batches = list(islice(calibration, _FIRST_RANGES_BATCHES))
    if not batches:
        raise QuantizationError(
            f'There are no calibration samples to set the initial ranges of recipe "{recipe}".',
            hint="Increase `data.calibration`, or use a data set with more training samples.",
        )
    model.eval()
    model.apply(disable_fake_quant)
    model.apply(enable_observer)
    with torch.no_grad():
        for inputs in batches:
            model(*(tensor.to(device) for tensor in inputs))
    model.apply(enable_fake_quant)


def _to_training(model: nn.Module, training: Training, epoch: int) -> None:
    """Put the model into training mode; freeze ranges and batch-norm statistics from the configured epochs on."""
    model.train()
    model.apply(disable_observer if epoch >= training.freeze_observers_after else enable_observer)
    if epoch >= training.freeze_batch_norm_after:
        model.apply(_freeze_batch_norm)


def _freeze_batch_norm(module: nn.Module) -> None:
    if hasattr(module, "freeze_bn_stats"):
        module.freeze_bn_stats()  # type: ignore[operator]
    elif isinstance(module, _BatchNorm):
        module.eval()


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy the tensors to separate CPU memory, because safetensors cannot write tensors that share memory."""
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
