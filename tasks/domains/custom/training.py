"""Training by the user's own function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from storage.errors import ConfigurationError
from tasks.compute import intra_op_threads
from tasks.domains.custom.factory_data import load_splits
from tasks.domains.custom.samples import load_samples
from tasks.domains.custom.sections import CustomWorkload, FactoryData, TrainedByCode
from tasks.user_code import call, call_factory

if TYPE_CHECKING:
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

# How a sum is cut among threads decides its last bits; and two workloads train side by side, one on each core.
_THREADS = 1


def train_by_code(workload: CustomWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
    """Call ``checkpoint.train(model, splits, seed=…, epochs=…, **arguments)``; its state dict, else the model's own.

    `splits` are the data sets of the user's own callable, or a table's as `TensorDataset` of (features, target).

    Raises
    ------
    ConfigurationError
        It fails, or returns something else than None or a state dict.
    """
    settings = cast(TrainedByCode, workload.checkpoint)
    data = workload.data
    splits: Mapping[str, object]
    if isinstance(data, FactoryData):
        splits = load_splits(data)
    else:
        splits = {split: _table(dataset, split, workspace) for split in dataset.splits}
    with torch.random.fork_rng(devices=[]), intra_op_threads(_THREADS):
        torch.manual_seed(settings.seed)
        model = call_factory(workload.model)
        given = {"seed": settings.seed, "epochs": settings.epochs, **settings.arguments}
        result = call("checkpoint.train", settings.train, settings.folder, model, splits, **given)
    state = model.state_dict() if result is None or isinstance(result, nn.Module) else result
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigurationError(
            f'checkpoint.train "{settings.train}" returned {type(result).__name__}, not None or a state dict.',
            hint="Train the model in place, or return model.state_dict().",
        )
    return {str(name): tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _table(dataset: DatasetRef, split: str, workspace: Workspace) -> TensorDataset:
    (batch,) = load_samples(dataset, split, workspace.store).batches
    return TensorDataset(*batch.inputs.values(), batch.target)
