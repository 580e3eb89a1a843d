"""What is done to a model prepared for quantization-aware training, and training by a callable of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, pairwise

import torch
from torch import Tensor, nn
from torch.ao.quantization import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer
from torch.nn.modules.batchnorm import _BatchNorm

from storage.errors import QuantizationError
from tasks.data.training import OwnTraining
from tasks.job import Progress
from tasks.quantize.spec import Training

_FIRST_RANGES_BATCHES = 8


def find_first_ranges(
    model: nn.Module, recipe: str, calibration: Iterable[tuple[Tensor, ...]], device: torch.device
) -> None:
    """Let the observers see calibration samples, so that the first step does not train against arbitrary ranges.

    Raises
    ------
    QuantizationError
        There are none.
    """
    batches = list(islice(calibration, _FIRST_RANGES_BATCHES))
    if not batches:
        raise QuantizationError(
            f'There are no calibration samples for recipe "{recipe}" to start from.',
            hint="Set data.calibration above 0, or use a data set with more training samples.",
        )
    model.eval()
    model.apply(disable_fake_quant)
    model.apply(enable_observer)
    with torch.no_grad():
        for inputs in batches:
            model(*(tensor.to(device) for tensor in inputs))
    model.apply(enable_fake_quant)


def to_training(model: nn.Module, training: Training, epoch: int) -> None:
    """Put the model into training mode, with ranges and statistics that move or stay as they are to be by then."""
    model.train()
    model.apply(disable_observer if epoch >= training.freeze_observers_after else enable_observer)
    if epoch >= training.freeze_batch_norm_after:
        model.apply(_freeze_batch_norm)


def train_prepared(
    model: nn.Module,
    recipe: str,
    training: Training,
    tuning: OwnTraining,
    calibration: Iterable[tuple[Tensor, ...]],
    progress: Progress,
) -> dict[str, Tensor]:
    """Train a prepared model by a callable, which has batches, loss and optimizer of its own; return its state dict.

    The callable runs anew where ranges or statistics are frozen, for the epochs that are left.

    Raises
    ------
    QuantizationError
        There are no calibration samples, or a weight became NaN or infinite.
    """
    find_first_ranges(model, recipe, calibration, torch.device("cpu"))
    frozen = (
        min(after, training.epochs) for after in (training.freeze_observers_after, training.freeze_batch_norm_after)
    )
    for start, stop in pairwise(sorted({0, *frozen, training.epochs})):
        progress(start, training.epochs, "epochs")
        to_training(model, training, start)
        tuning.train(model, training.seed + start, stop - start)
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise QuantizationError(
                f'Training of recipe "{recipe}" diverged: "{name}" holds NaN or infinities.',
                hint="Train it more gently, for instance with a lower learning rate.",
            )
    return copied(model.state_dict())


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, in memory that they share with nothing: safetensors refuses to write others."""
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


def _freeze_batch_norm(module: nn.Module) -> None:
    if hasattr(module, "freeze_bn_stats"):
        module.freeze_bn_stats()  # type: ignore[operator]
    elif isinstance(module, _BatchNorm):
        module.eval()
