"""Fine-tune an image classifier with simulated quantization.

The recipe is that of Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2018): train with fake quantization, and towards the end hold the ranges and the batch norms' statistics
still, so that the last epochs train for the arithmetic that the converted model will use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.ao.quantization import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer
from torch.nn.functional import cross_entropy

from storage.errors import QuantizationError
from tasks.domains.image_classification.images import load_images, training_batches
from tasks.quantize.base import Context
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.training_state import TrainingState, snapshot

_FIRST_RANGES_BATCHES = 8


def fine_tune(model: nn.Module, recipe: QatRecipe, context: Context, work: Path, device: torch.device) -> nn.Module:
    """Train a prepared model and give it the weights of its best epoch on the valid split, on the CPU.

    Equal seeds give equal results on one kind of processor with one number of threads, whether or not the process was
    killed in between: after each epoch all that the next one depends on is saved in `work`.

    Raises
    ------
    QuantizationError
        There are no calibration or valid images, or the loss becomes NaN or infinite.
    """
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    state = TrainingState.load(work, model, optimizer)
    if state.standing.epochs == 0:
        _find_first_ranges(model, recipe, context, device)
    for epoch in range(state.standing.epochs, recipe.epochs):
        _train_epoch(model, optimizer, recipe, context, epoch, device)
        top1, loss = _validate(model, recipe, context, device)
        standing = replace(state.standing, epochs=epoch + 1)
        if not state.best or standing.beaten_by(top1, loss):
            state.best = snapshot(model)
            standing = replace(standing, best_epoch=epoch, best_top1=top1, best_loss=loss)
        state.standing = standing
        state.save(work, model, optimizer)
    model.load_state_dict(state.best)
    return model.cpu().eval()


def _find_first_ranges(model: nn.Module, recipe: QatRecipe, context: Context, device: torch.device) -> None:
    """Let the observers see calibration images, so that the first step does not train against arbitrary ranges."""
    model.eval()
    model.apply(disable_fake_quant)
    model.apply(enable_observer)
    split = load_images(context.dataset, "calibration", context.store)
    if not len(split):
        raise QuantizationError(
            f'The data set of workload "{context.workload.name}" has no calibration images.',
            hint="Set data.calibration above 0, or use a data set with more training images.",
        )
    with torch.no_grad():
        for images, _ in islice(split.batches(recipe.batch_size), _FIRST_RANGES_BATCHES):
            model(images.to(device))
    model.apply(enable_fake_quant)


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    recipe: QatRecipe,
    context: Context,
    epoch: int,
    device: torch.device,
) -> None:
    model.train()
    model.apply(disable_observer if epoch >= recipe.freeze_observers_after else enable_observer)
    if epoch >= recipe.freeze_batch_norm_after:
        model.apply(_freeze_batch_norm)
    # Order, shifts and dropout follow from seed and epoch alone, so that an epoch can be repeated.
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    steps = math.ceil(context.dataset.splits["train"] / recipe.batch_size)
    with _seeded(recipe.seed * 1_000_003 + epoch, device):
        batches = training_batches(context.dataset, context.store, recipe.batch_size, generator)
        for step, (images, labels) in enumerate(batches, start=1):
            loss = _loss(model, images.to(device), labels.to(device))
            if not torch.isfinite(loss):
                raise QuantizationError(
                    f'Training of recipe "{recipe.name}" diverged in epoch {epoch + 1}: the loss is {loss.item()}.',
                    hint="Lower the recipe's learning_rate.",
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            context.progress(epoch * steps + step, recipe.epochs * steps, "training batches")


def _validate(model: nn.Module, recipe: QatRecipe, context: Context, device: torch.device) -> tuple[float, float]:
    """Top-1 (share) and mean loss on the valid split, with quantization simulated."""
    split = load_images(context.dataset, "valid", context.store)
    if not len(split):
        raise QuantizationError(
            f'The data set of workload "{context.workload.name}" has no valid images to choose the best epoch by.',
            hint="Set data.valid or data.valid_share above 0.",
        )
    model.eval()
    model.apply(disable_observer)
    correct, loss = 0.0, 0.0
    with torch.no_grad():
        for images, labels in split.batches(recipe.batch_size):
            logits, expected = _logits(model(images.to(device))), labels.to(device)
            correct += float((logits.argmax(1) == expected).sum())
            loss += float(cross_entropy(logits, expected, reduction="sum"))
    return correct / len(split), loss / len(split)


def _loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    try:
        return cross_entropy(_logits(model(images)), labels)
    except RuntimeError as error:
        # How fake quantization takes weights that have become infinite.
        if "`zero_point` must be between" not in str(error):
            raise
        return torch.tensor(math.nan)


def _logits(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    # GoogLeNet and Inception also give their auxiliary heads' outputs in training.
    return output if isinstance(output, Tensor) else output[0]


def _freeze_batch_norm(module: nn.Module) -> None:
    if hasattr(module, "freeze_bn_stats"):
        module.freeze_bn_stats()  # type: ignore[operator]
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.eval()


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
