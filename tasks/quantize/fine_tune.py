"""Quantization-aware training: a prepared model fine-tuned once for all runtimes, as an artifact of its own.

The recipe is that of Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2018): train with fake quantization, and towards the end hold the ranges and the batch norms' statistics
still, so that the last epochs train for the arithmetic that the converted model will use.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.ao.quantization import disable_observer

from storage.artifacts import artifact_digest
from storage.errors import QuantizationError
from storage.root import fsync
from tasks.data.training import FineTuning, OwnTraining
from tasks.job import Progress
from tasks.outputs import training_device
from tasks.quantize.graph.observers import reduces_range
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, Training
from tasks.quantize.training import copied, find_first_ranges, to_training, train_prepared
from tasks.sources import code_digest
from tasks.tensor_files import save_tensors

KIND = "fine-tuned"
WEIGHTS = "weights.safetensors"
_EPOCH = "epoch.safetensors"


@dataclass
class TrainingState:
    """Training between two epochs: how many are done, and the score, loss and state dict of the best one."""

    epochs: int = 0
    score: float = -math.inf
    loss: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)

    def save(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Replace the saved state by this one; a reader sees the old one or the new one, whole."""
        moments: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
        groups = {"model": model.state_dict(), "best": self.best, **{str(key): group for key, group in moments.items()}}
        tensors = {
            f"{group}/{name}": tensor for group, state in groups.items() for name, tensor in copied(state).items()
        }
        numbers = {"epochs": self.epochs, "score": self.score, "loss": self.loss}
        temporary = folder / f"{_EPOCH}.tmp"
        save_tensors(tensors, temporary, metadata={"numbers": json.dumps(numbers)})
        fsync(temporary)
        temporary.replace(folder / _EPOCH)

    @classmethod
    def load(cls, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Self:
        """Put what was saved into `model` and `optimizer`; the start of training where nothing was."""
        path = folder / _EPOCH
        if not path.is_file():
            return cls()
        groups: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        with safe_open(path, framework="pt") as file:
            numbers = json.loads(file.metadata()["numbers"])
            for key in file.keys():  # noqa: SIM118 - not a mapping
                group, _, name = key.partition("/")
                groups[group][name] = file.get_tensor(key)
        model.load_state_dict(groups.pop("model"))
        best = groups.pop("best")
        moments = {int(key): group for key, group in groups.items()}
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        return cls(**numbers, best=best)


def fine_tuned(prepared: nn.Module, spec: Spec, source: ModelSource) -> nn.Module:
    """Train a model prepared with fake quantization, or give it the state that an equal training gave before.

    It is the model itself that is returned, with the weights and ranges of its best epoch, on the CPU in evaluation
    mode.

    Raises
    ------
    QuantizationError
        Training diverges.
    InputError
        There are too few training samples.
    """
    training, recipe = spec.training, spec.recipe
    assert training is not None
    tuning, workspace = source.tuning(training.batch_size), source.workspace
    own = tuning if isinstance(tuning, OwnTraining) else None
    device, store = torch.device("cpu") if own else training_device(), workspace.store
    data = [source.fine_tuning.made_by] if source.fine_tuning else []
    made_from = {
        **source.made_from,
        "recipe": recipe.content(),
        "reduces_range": reduces_range(spec.engine),
        "weights": hashlib.sha256(save(copied(prepared.state_dict()))).hexdigest(),
        "device": device.type,
        "training": code_digest(__name__, "tasks.quantize.graph.convert", *data),
        "own": own.made_from if own else {},
    }
    digest = artifact_digest(KIND, made_from)
    with workspace.alone(digest) as work:
        if store.find(KIND, digest) is None:
            ranges = source.calibration_batches(training.batch_size)
            if isinstance(tuning, OwnTraining):
                best = train_prepared(prepared, recipe.name, training, tuning, ranges, workspace.progress)
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
    """Train a prepared model.

    Equal seeds give equal results on one kind of processor with one number of threads, whether or not the process was
    killed in between: after each epoch all that the next one depends on is saved in `work`. The first batches of
    positional inputs in `calibration` set the ranges that training starts from.

    What it returns is the state dict of the best epoch, on the CPU: the one with the highest score, or of equal ones
    that with the lowest loss.

    Raises
    ------
    QuantizationError
        There are no calibration samples, or the loss becomes NaN or infinite.
    """
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate)
    loop = _Loop(model, optimizer, recipe, training, tuning, device, progress)
    state = TrainingState.load(work, model, optimizer)
    if state.epochs == 0:
        find_first_ranges(model, recipe, calibration, device)
    for epoch in range(state.epochs, training.epochs):
        loop.run_epoch(epoch)
        model.eval()
        model.apply(disable_observer)
        with torch.no_grad():
            score, loss = tuning.validate(model, device)
        state.epochs = epoch + 1
        if not state.best or (score, -loss) > (state.score, -state.loss):
            state.score, state.loss, state.best = score, loss, copied(model.state_dict())
        state.save(work, model, optimizer)
    return state.best


@dataclass(frozen=True)
class _Loop:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    recipe: str
    training: Training
    tuning: FineTuning
    device: torch.device
    progress: Progress

    def run_epoch(self, epoch: int) -> None:
        """Order, shifts and dropout follow from seed and epoch alone, so that an epoch can be repeated."""
        training, steps = self.training, self.tuning.steps_per_epoch
        to_training(self.model, training, epoch)
        seed = training.seed * 1_000_003 + epoch
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            batches = self.tuning.batches(torch.Generator().manual_seed(seed))
            for step, (inputs, target) in enumerate(batches, start=1):
                loss = self._loss(inputs, target)
                if not torch.isfinite(loss):
                    raise QuantizationError(
                        f'Training of recipe "{self.recipe}" diverged in epoch {epoch + 1}: the loss is {loss.item()}.',
                        hint="Lower the recipe's learning_rate.",
                    )
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                done = epoch * steps + step
                self.progress(done, training.epochs * steps, f"training batches, loss {loss.item():.3f}")

    def _loss(self, inputs: Iterable[Tensor], target: Tensor) -> Tensor:
        try:
            outputs = self.model(*(tensor.to(self.device) for tensor in inputs))
            return self.tuning.loss(outputs, target.to(self.device))
        except RuntimeError as error:
            # How fake quantization takes weights that have become infinite.
            if "`zero_point` must be between" not in str(error):
                raise
            return torch.tensor(math.nan)
