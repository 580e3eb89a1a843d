"""Training by the user's own function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from storage.errors import ConfigurationError
from tasks.data.splits import load_samples
from tasks.data.training import THREADS
from tasks.data.tuning import OwnTraining
from tasks.data.user_data import load_splits
from tasks.outputs import intra_op_threads
from tasks.sources import user_digest
from tasks.user_code import call, call_factory

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.domains.custom import CustomWorkload, FineTune, TrainedByCode
    from tasks.job import Job
    from tasks.refs import DatasetRef


def train_by_code(workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore) -> dict[str, Tensor]:
    """Call ``checkpoint.train(model, splits, seed=…, epochs=…, **arguments)``; its state dict, else the model's own.

    `splits` are the data sets of the user's own callable, or a table's as `TensorDataset` of (features, target).

    Raises
    ------
    ConfigurationError
        It fails, or returns something else than None or a state dict.
    """
    told = cast("TrainedByCode", workload.checkpoint)
    splits = _splits(workload, dataset, store)
    with _seeded(told.seed):
        model = call_factory(workload.model)
        state = _call("checkpoint.train", told, model, splits, told.seed, told.epochs)
    return {str(name): tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def fine_tuning_by_code(job: Job[CustomWorkload], store: ArtifactStore) -> OwnTraining:
    """The user's callable on a model that is prepared for quantization-aware training."""
    workload, told = job.workload, job.workload.training
    assert told is not None, "validated"
    key = "fine_tune.train" if workload.fine_tune else "checkpoint.train"

    def train(model: nn.Module, seed: int, epochs: int) -> None:
        splits = _splits(workload, job.dataset, store)
        with _seeded(seed):
            model.load_state_dict(_call(key, told, model, splits, seed, epochs))

    arguments = told.model_dump(mode="json", include={"train", "arguments"})
    return OwnTraining(train, arguments | {"code": user_digest(told.folder, told.train)})


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), intra_op_threads(THREADS):
        torch.manual_seed(seed)
        yield


def _call(
    key: str, told: TrainedByCode | FineTune, model: nn.Module, splits: Mapping[str, object], seed: int, epochs: int
) -> Mapping[str, Tensor]:
    result = call(key, told.train, told.folder, model, splits, seed=seed, epochs=epochs, **told.arguments)
    state = model.state_dict() if result is None or isinstance(result, nn.Module) else result
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigurationError(
            f'{key} "{told.train}" returned {type(result).__name__}, not None or a state dict.',
            hint="Train the model in place, or return model.state_dict().",
        )
    return state


def _splits(workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore) -> Mapping[str, object]:
    if workload.data.kind == "factory":
        with _seeded(0):  # as the splits that are stored were made
            return load_splits(workload.data)
    splits = {split: load_samples(dataset, split, store) for split in dataset.splits}
    return {name: TensorDataset(split[split.description.inputs[0]], split.target) for name, split in splits.items()}
