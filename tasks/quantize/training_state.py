"""What quantization-aware training goes on from after a kill: one file of plain tensors and JSON, replaced whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import unwritable
from storage.locks import passing_lock
from tasks.tensor_files import save_tensors

_FILE = "epoch.safetensors"


@dataclass(frozen=True)
class Standing:
    """Epochs that are done, and which of them was best: its top-1 (share) and loss on the valid split."""

    epochs: int = 0
    best_epoch: int = 0
    best_top1: float = -1.0
    best_loss: float = float("inf")

    def beaten_by(self, top1: float, loss: float) -> bool:
        """Whether another epoch is better: by top-1, and by loss where that is equal."""
        return (top1, -loss) > (self.best_top1, -self.best_loss)


@dataclass
class TrainingState:
    """Training between two epochs.

    Attributes
    ----------
    standing
        How far training is.
    best
        State dict of the best epoch, on the CPU.
    """

    standing: Standing
    best: dict[str, Tensor]

    def save(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Replace the saved state by this one; a reader sees the old one or the new one, whole."""
        groups = {"model": model.state_dict(), "best": self.best, "optimizer": _flat(optimizer)}
        tensors = {
            f"{group}/{name}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for group, entries in groups.items()
            for name, tensor in entries.items()
        }
        temporary = folder / f"{_FILE}.{os.getpid()}.tmp"
        save_tensors(tensors, temporary, metadata={"standing": json.dumps(asdict(self.standing))})
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(folder / _FILE)

    @classmethod
    def load(cls, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
        """Put what was saved into `model` and `optimizer`; the start of training where nothing was."""
        path = folder / _FILE
        if not path.is_file():
            return cls(Standing(), {})
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        with safe_open(path, framework="pt") as file:
            standing = Standing(**json.loads(file.metadata()["standing"]))
            for key in file.keys():  # noqa: SIM118 - not a mapping
                group, _, name = key.partition("/")
                groups[group][name] = file.get_tensor(key)
        model.load_state_dict(groups["model"])
        _restore(optimizer, groups["optimizer"])
        return cls(standing, groups["best"])


@contextmanager
def alone(store: ArtifactStore, digest: str) -> Iterator[Path]:
    """Yield the work folder of a training while no other process or thread has it; wait where one does.

    The lock is the kernel's and ends with its holder, so a kill leaves nothing that the next one would wait for.

    Raises
    ------
    StoreError
        The store cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(passing_lock(store.work_folder(digest).with_suffix(".lock")))
        except OSError as error:
            raise unwritable(store.root, error) from error
        # Again, for whoever was waited for has removed it.
        yield store.work_folder(digest)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state: Mapping[int, Mapping[str, Any]] = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entries in state.items() for name, tensor in entries.items()}


def _restore(optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
