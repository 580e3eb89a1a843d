"""The domain ``custom``: models of any kind, with the user's own module, data, metric and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, MeasurementError, did_you_mean
from tasks.data.evaluation import Quality, checked_outputs, evaluate_batches, perplexity_beside
from tasks.data.metrics import METRICS
from tasks.data.samples import TARGET, load_samples, load_test, read_description
from tasks.data.scores import OwnScore, Score
from tasks.data.sections import BATCH, FactoryData
from tasks.data.tables import prepare_table
from tasks.data.training import THREADS, OwnTraining
from tasks.data.user_data import first_input, load_splits, prepare_factory
from tasks.data.weights import build_blank, load_state
from tasks.domains.base import Axes, Domain, write_preprocessing
from tasks.domains.custom import CustomWorkload, FineTune, TrainedByCode
from tasks.domains.custom.outputs import flat, names, structure_of, structured
from tasks.job import Job, Workspace
from tasks.outputs import Call, intra_op_threads, tensors_of
from tasks.refs import DatasetRef
from tasks.results import Proposal
from tasks.sources import user_digest
from tasks.user_code import call as call_user
from tasks.user_code import call_factory, in_its_own_words
from tasks.workload.base import FactorySpec


class Custom(Domain[CustomWorkload, FactorySpec]):
    """The domain ``custom``."""

    def prepare(self, workload: CustomWorkload, workspace: Workspace) -> DatasetRef:
        """Ask the user's code for the splits, or read the table; inputs are named as forward's parameters."""
        data, model = workload.data, build_blank(lambda: call_factory(workload.model))
        if isinstance(data, FactoryData):
            return prepare_factory(data, model, workspace)
        return prepare_table(data, first_input(model), workspace)

    def build(self, model: FactorySpec, dataset: DatasetRef) -> nn.Module:
        """Call the user's factory; the model returns its outputs in one row, see `flat`."""
        return flat(call_factory(model)).eval()

    def check(self, job: Job[CustomWorkload], workspace: Workspace) -> None:
        """Call the float model on its first test rows, and the metric on what it gives."""
        model = self.build(job.workload.model, job.dataset)
        model.load_state_dict(load_state(job.checkpoint, workspace.store))
        settings, split = job.workload.evaluate, load_test(job.dataset, workspace.store, apart=False)
        batch = next(split.batches(settings.batch_size))
        shapes = ", ".join(
            f"{name} {str(each.dtype).removeprefix('torch.')} {list(each.shape)}"
            for name, each in zip(split.description.inputs, batch.inputs, strict=True)
        )
        what = f'model.factory "{job.workload.model.factory}"'
        with torch.inference_mode():
            with in_its_own_words(f"{what}: forward failed on {shapes}", "Fix forward, or what the data gives it."):
                result = model(*batch.inputs)
            try:
                assert batch.target is not None
                chosen = tensors_of(result)[self._scored(job, workspace.store)]
                self.metric(job.workload).take(checked_outputs(chosen, batch.size), batch.target)
            except MeasurementError as error:
                raise MeasurementError(f"{what}: {error.message}", hint=error.hint) from error

    def axes(self, workload: CustomWorkload, examples: Mapping[str, Tensor]) -> Axes:
        """Name any number of rows, and what ``data.axes`` names besides."""
        return open_axes(workload.axes, tuple(examples))

    def example_inputs(
        self, workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return the first rows of the test split; a first batch that is too short is repeated.

        With ``benchmark.sequence_length``, take the first batch of that many steps, else the next longer one, cut, else
        the longest, repeated.
        """
        split = load_test(dataset, store, apart=batch_size == 1)
        names, axes = split.description.inputs, open_axes(workload.axes, split.description.inputs)
        batches = (dict(zip(names, batch.inputs, strict=True)) for batch in split.batches(batch_size))
        lengths = {BATCH: batch_size}
        if steps := workload.benchmark.sequence_length:
            lengths[workload.steps] = steps
            batch = min(batches, key=lambda batch: _distance(batch, axes, workload.steps, steps))
        else:
            batch = next(batches)
        for name, named in axes.items():
            for axis, length in named.items():
                if length in lengths and batch[name].shape[axis] != lengths[length]:
                    repeated = torch.arange(lengths[length]) % batch[name].shape[axis]
                    batch[name] = batch[name].index_select(axis, repeated)
        return {name: tensor.contiguous() for name, tensor in batch.items()}

    def metric(self, workload: CustomWorkload) -> Score:
        """Return the registered metric that ``evaluate.metric`` names, or the user's own."""
        settings = workload.evaluate
        if settings.metric in METRICS:
            return METRICS[settings.metric]
        name = settings.metric.rpartition(":")[2] + (f" ({settings.unit})" if settings.unit else "")
        return OwnScore(name, bool(settings.higher_is_better), settings.metric, settings.folder)

    def evaluate(self, job: Job[CustomWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Compute ``evaluate.metric`` of ``evaluate.output``, or of the first output, on the test split.

        A `ConfigurationError` says that the user's metric fails, or returns neither a number nor one for each row.
        """
        settings = job.workload.evaluate
        split = load_test(job.dataset, workspace.store, apart=apart)
        scored = self._scored(job, workspace.store)
        quality = evaluate_batches(
            lambda *inputs: tensors_of(call(*inputs))[scored],
            split.batches(1 if apart else settings.batch_size),
            self.metric(job.workload),
            total=len(split),
            apart=apart,
            progress=workspace.progress,
        )
        if settings.metric == "loss":
            return replace(quality, metrics=quality.metrics | perplexity_beside(quality.value))
        return quality

    def output_names(self, job: Job[CustomWorkload], store: ArtifactStore) -> tuple[str, ...]:
        """Name the outputs as the model's own forward does."""
        return names(self._structure(job, store))

    def _structure(self, job: Job[CustomWorkload], store: ArtifactStore) -> object:
        model = self.build(job.workload.model, job.dataset)
        model.load_state_dict(load_state(job.checkpoint, store))
        return structure_of(model, tuple(self.example_inputs(job.workload, job.dataset, store, 1).values()))

    def _scored(self, job: Job[CustomWorkload], store: ArtifactStore) -> int:
        """Number of the output that the metric takes."""
        if not (wanted := job.workload.evaluate.output):
            return 0
        if wanted not in (known := self.output_names(job, store)):
            raise ConfigurationError(
                f'evaluate.output "{wanted}": the model has no such output{did_you_mean(wanted, known)}.',
                hint=f"It has: {', '.join(known)}.",
            )
        return known.index(wanted)

    def train(self, workload: CustomWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Call ``checkpoint.train(model, splits, seed=…, epochs=…, **arguments)``.

        Return its state dict, or the model's own. `splits` are the data sets of the user's own callable, or a table's
        as `TensorDataset` of (features, target). A `ConfigurationError` says that it fails, or returns something else.
        """
        told = cast("TrainedByCode", workload.checkpoint)
        splits = _splits(workload, dataset, workspace.store)
        with _seeded(told.seed):
            model = call_factory(workload.model)
            state = _trained("checkpoint.train", told, model, splits, told.seed, told.epochs)
        return {str(name): tensor.detach().cpu().contiguous() for name, tensor in state.items()}

    def fine_tuning(self, job: Job[CustomWorkload], store: ArtifactStore, batch_size: int) -> OwnTraining:
        """Call the user's ``train`` on a model that is prepared for quantization-aware training."""
        workload, told = job.workload, job.workload.training
        assert told is not None, "validated"
        key = "fine_tune.train" if workload.fine_tune else "checkpoint.train"
        structure = self._structure(job, store)

        def train(model: nn.Module, seed: int, epochs: int) -> None:
            splits = _splits(workload, job.dataset, store)
            with _seeded(seed), structured(model, structure):
                model.load_state_dict(_trained(key, told, model, splits, seed, epochs))

        arguments = told.model_dump(mode="json", include={"train", "arguments"})
        return OwnTraining(train, arguments | {"code": user_digest(told.folder, told.train)})

    def propose(self, workload: CustomWorkload, workspace: Workspace) -> Proposal:
        """Choose a metric for such targets, and the axes whose lengths differ from batch to batch."""
        dataset, store = self.prepare(workload, workspace), workspace.store
        axes = axes_of(dataset, store)
        return Proposal(
            sections={"evaluate": {"metric": metric_for(dataset, store)}, "data": {"axes": axes} if axes else {}}
        )

    def write_resources(self, job: Job[CustomWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write ``preprocessing.json`` of a table: its features, what standardizes them, and the classes."""
        if isinstance(job.workload.data, FactoryData):
            return {}
        described = read_description(job.dataset, store).model_dump(
            mode="json", include={"inputs", "features", "mean", "std", "classes"}
        )
        how = {"standardize": "(value - mean) / std for each feature, then float32"}
        return write_preprocessing(described | how, folder)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), intra_op_threads(THREADS):
        torch.manual_seed(seed)
        yield


def _trained(
    key: str, told: FineTune, model: nn.Module, splits: Mapping[str, object], seed: int, epochs: int
) -> Mapping[str, Tensor]:
    """Call the user's ``train``, which `key` names; return the state dict."""
    result = call_user(key, told.train, told.folder, model, splits, seed=seed, epochs=epochs, **told.arguments)
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


def _distance(batch: Mapping[str, Tensor], axes: Axes, name: str, length: int) -> tuple[bool, int]:
    there = next(batch[each].shape[axis] for each, named in axes.items() for axis, of in named.items() if of == name)
    return there < length, abs(there - length)


def open_axes(names: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...]) -> Axes:
    """``data.axes`` as numbers of axes and names of lengths; without it each input's first axis is that of the rows."""
    if not names:
        return {name: {0: BATCH} for name in inputs}
    return {name: {axis: length for axis, length in enumerate(names.get(name, ())) if length} for name in inputs}


def metric_for(dataset: DatasetRef, store: ArtifactStore) -> str:
    """``mse`` for numbers, ``accuracy`` for a class a row, ``loss`` for several."""
    target = load_samples(dataset, "test", store).columns[TARGET]
    first = target.values if target.shapes is None else target[0]
    if first.is_floating_point():
        return "mse"
    return "accuracy" if first.dim() == 1 else "loss"


def axes_of(dataset: DatasetRef, store: ArtifactStore) -> dict[str, list[str]]:
    """``data.axes`` of batches that a collate function made; empty where items are stacked, whose axis 0 is ``batch``.

    Axes are named alike whose lengths are always equal.
    """
    described = read_description(dataset, store)
    if not described.collated:
        return {}
    # Single rows as well: what is as long as a batch by chance is not as long as every one.
    splits = [load_test(dataset, store, apart=apart).columns for apart in (False, True)]
    shapes = {name: [shape for split in splits for shape in split[name].shapes or ()] for name in splits[0]}
    names: dict[tuple[int, ...], str] = {tuple(shape[0] for shape in shapes[TARGET]): BATCH}
    found = {}
    for name in described.inputs:
        lengths = [tuple(shape[axis] for shape in shapes[name]) for axis in range(len(shapes[name][0]))]
        for each in lengths:
            if len(set(each)) > 1 and each not in names:
                names[each] = "length" if len(names) == 1 else f"length-{len(names)}"
        axes = [names.get(each, "") for each in lengths]
        while axes and not axes[-1]:
            axes.pop()
        found[name] = axes
    return found
