"""Quantization-aware training: fine-tune a prepared model once, and store the result for all runtimes.

The method follows Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2018). Training uses fake quantization, and freezes the ranges and the batch-norm statistics towards the
end. The last epochs adapt the weights to the converted model's arithmetic.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.ao.quantization import disable_fake_quant, disable_observer, enable_fake_quant, enable_observer
from torch.nn.modules.batchnorm import _BatchNorm

from storage.artifacts import artifact_digest
from storage.errors import QuantizationError
from storage.root import fsync
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
_EPOCH = "epoch.safetensors"
_FIRST_RANGES_BATCHES = 8


@dataclass
class TrainingState:
    """The training state between epochs: the epoch count, and the best epoch's score, loss and state dict."""

    epochs: int = 0
    score: float = -math.inf
    loss: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)

    def save(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save the training state, and atomically replace the earlier file."""
        moments: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
        groups = {"model": model.state_dict(), "best": self.best, **{str(key): group for key, group in moments.items()}}
        tensors = {
            f"{group}/{name}": tensor for group, state in groups.items() for name, tensor in _copied(state).items()
        }
        numbers = {"epochs": self.epochs, "score": self.score, "loss": self.loss}
        temporary = folder / f"{_EPOCH}.tmp"
        save_tensors(tensors, temporary, metadata={"numbers": json.dumps(numbers)})
        fsync(temporary)
        temporary.replace(folder / _EPOCH)

    @classmethod
    def load(cls, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Self:
        """Load a saved state into `model` and `optimizer`; return an initial state if there is no saved state."""
        path = folder / _EPOCH
        if not path.is_file():
            return cls()
        groups: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        with safe_open(path, framework="pt") as file:
            numbers = json.loads(file.metadata()["numbers"])
            for key in file.keys():  # noqa: SIM118 - file is not a mapping
                group, _, name = key.partition("/")
                groups[group][name] = file.get_tensor(key)
        model.load_state_dict(groups.pop("model"))
        best = groups.pop("best")
        moments = {int(key): group for key, group in groups.items()}
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        return cls(**numbers, best=best)


def fine_tuned(prepared: nn.Module, spec: Spec, source: ModelSource) -> nn.Module:
    """Train a model that contains fake quantization, or load the result of an identical earlier training run.

    Return the model on the CPU in evaluation mode, with the weights and ranges of the best epoch.

    Raises
    ------
    QuantizationError
        Training diverges.
    InputError
        There are too few training samples.
    """
    training, recipe, data, workspace = spec.training, spec.recipe, source.fine_tuning, source.workspace
    assert training is not None
    assert data is not None  # validation rejects a workload without training data
    tuning = data(training.batch_size)
    own = tuning if isinstance(tuning, OwnTraining) else None
    device, store = torch.device("cpu") if own else training_device(), workspace.store
    made_from = {
        **source.made_from,
        "spec": spec.content(),
        "reduces_range": reduces_range(spec.engine),
        "weights": hashlib.sha256(save(_copied(prepared.state_dict()))).hexdigest(),
        "device": device.type,
        "training": code_digest(__name__, "tasks.quantize.graph.convert", data.func),
        "own": own.made_from if own else {},
    }
    digest = artifact_digest(KIND, made_from)
    with workspace.alone(digest) as work:
        if store.find(KIND, digest) is None:
            ranges = source.calibration_batches(training.batch_size)
            if isinstance(tuning, OwnTraining):
                _find_first_ranges(prepared, recipe.name, ranges, device)
                best = _train_by_callable(prepared, recipe.name, training, tuning, workspace.progress)
            else:
                best = fine_tune(prepared, recipe.name, training, tuning, ranges, work, device, workspace.progress)
            with store.create(KIND, digest, made_from) as folder:
                save_tensors(best, folder / WEIGHTS)
    prepared.load_state_dict(load_file(store.path(KIND, digest) / WEIGHTS))
    return prepared.cpu().eval()


def fine_tune(
    model: nn.Module,
    recipe: str,
    training: Training,
    tuning: FineTuning,
    calibration: Iterable[tuple[Tensor, ...]],
    work: Path,
    device: torch.device,
    progress: Progress,
) -> dict[str, Tensor]:
    """Train a prepared model; return the state dict of the best epoch, with tensors on the CPU.

    The best epoch has the highest score or, among equal scores, the lowest loss. On the same kind of processor and with
    the same number of threads, equal seeds give equal results. Resuming interrupted training does not change the
    results. After each epoch, the training state is saved in `work`. The first batches in `calibration` set the initial
    ranges.

    Raises
    ------
    QuantizationError
        There are no calibration samples, or the loss becomes NaN or infinite.
    """
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
    state = TrainingState.load(work, model, optimizer)
    if state.epochs == 0:
        _find_first_ranges(model, recipe, calibration, device)
    for epoch in range(state.epochs, training.epochs):
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
                steps = training.epochs * tuning.steps_per_epoch
                progress(step, steps, f"training batches, loss {loss.item():.3f}")
        model.eval()
        model.apply(disable_observer)
        with torch.no_grad():
            score, loss_after = tuning.validate(model, device)
        state.epochs = epoch + 1
        if not state.best or (score, -loss_after) > (state.score, -state.loss):
            state.score, state.loss, state.best = score, loss_after, _copied(model.state_dict())
        state.save(work, model, optimizer)
    return state.best


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
