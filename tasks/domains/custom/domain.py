"""The ``custom`` domain: models of any kind, with the user's own module, data, metric and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, did_you_mean
from tasks.data.evaluation import (
    OF_CLASSES,
    Quality,
    check_labels,
    checked_outputs,
    evaluate_batches,
    perplexity_metric,
)
from tasks.data.metrics import METRICS
from tasks.data.outputs import Call, flat, intra_op_threads, output_names, structured, tensors_of
from tasks.data.samples import SORTED, TARGET, load_samples, load_test, read_description
from tasks.data.scores import OwnScore, Score
from tasks.data.sections import BATCH, FactoryData
from tasks.data.tables import prepare_table
from tasks.data.training import THREADS, OwnTraining
from tasks.data.user_data import forward_parameters, load_splits, prepare_factory
from tasks.data.weights import build_blank, load_checkpoint
from tasks.domains.base import Axes, Domain, write_preprocessing
from tasks.domains.custom import CustomWorkload, FineTune, TrainedByCode
from tasks.environment.sources import user_digest
from tasks.environment.user_code import call as call_user
from tasks.environment.user_code import call_factory, in_its_own_words, opened
from tasks.values.job import Job, Workspace
from tasks.values.refs import DatasetRef
from tasks.values.results import Proposal
from tasks.workload.base import FactorySpec


class Custom(Domain[CustomWorkload, FactorySpec]):
    """The domain ``custom``."""

    def prepare(self, workload: CustomWorkload, workspace: Workspace) -> DatasetRef:
        """Prepare the splits from the user's code or from a table; inputs are named as ``forward``'s parameters."""
        data, model = workload.data, build_blank(lambda: call_factory(workload.model))
        if isinstance(data, FactoryData):
            return prepare_factory(data, model, workspace)
        return prepare_table(data, forward_parameters(model)[0], workspace)

    def build(self, model: FactorySpec, dataset: DatasetRef) -> nn.Module:
        """Build the model with the user's factory; it returns a tuple instead of a dictionary (see `flat`)."""
        return flat(call_factory(model)).eval()

    def check(self, job: Job[CustomWorkload], workspace: Workspace) -> None:
        """Check that the training can be called, and that the metric accepts the model's output for some test rows."""
        trained = {"checkpoint": job.workload.checkpoint, "fine_tune": job.workload.fine_tune}
        for section, training in trained.items():
            if isinstance(training, FineTune):
                _check_signature(section, training)
        model = self.build(job.workload.model, job.dataset)
        load_checkpoint(model, job.checkpoint, workspace.store)
        settings, split = job.workload.evaluate, load_test(job.dataset, workspace.store, singly=False)
        batch = next(split.batches(settings.batch_size))
        shapes = ", ".join(str(list(tensor.shape)) for tensor in batch.inputs)
        with torch.inference_mode():
            with in_its_own_words(f"The model's forward failed on inputs {shapes}", "Fix forward or the data."):
                result = model(*batch.inputs)
            assert batch.target is not None
            scored = checked_outputs(tensors_of(result)[self._scored_output(job, workspace.store)], batch.size)
            if settings.metric in OF_CLASSES:
                check_labels(scored, split.description, named=job.workload.brings_weights)
            self.metric(job.workload).take(scored, batch.target)

    def axes(self, workload: CustomWorkload, examples: Mapping[str, Tensor]) -> Axes:
        """Return the row axis and the axes that ``data.axes`` names."""
        return open_axes(workload.axes, tuple(examples))

    def example_inputs(
        self, workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return the first rows of the test split, or the rows nearest to ``benchmark.sequence_length`` steps."""
        split = load_test(dataset, store, singly=batch_size == 1)
        names, axes = split.description.inputs, open_axes(workload.axes, split.description.inputs)
        batches = (dict(zip(names, batch.inputs, strict=True)) for batch in split.batches(batch_size))
        lengths = {BATCH: batch_size}
        if steps := workload.benchmark.sequence_length:
            lengths[workload.steps] = steps
            batch = min(batches, key=lambda batch: _distance(batch, axes, workload.steps, steps))
        else:
            batch = next(batches)
        for name, axis_names in axes.items():
            for axis, axis_name in axis_names.items():
                if axis_name in lengths and batch[name].shape[axis] != lengths[axis_name]:
                    repeated = torch.arange(lengths[axis_name]) % batch[name].shape[axis]
                    batch[name] = batch[name].index_select(axis, repeated)
        return {name: tensor.contiguous() for name, tensor in batch.items()}

    def metric(self, workload: CustomWorkload) -> Score:
        """Return the registered metric that ``evaluate.metric`` names, or the user's own metric."""
        settings = workload.evaluate
        if settings.metric in METRICS:
            return METRICS[settings.metric]
        name = settings.metric.rpartition(":")[2] + (f" ({settings.unit})" if settings.unit else "")
        return OwnScore(name, bool(settings.higher_is_better), settings.metric, settings.folder)

    def evaluate(self, job: Job[CustomWorkload], call: Call, workspace: Workspace, *, singly: bool = False) -> Quality:
        """Compute ``evaluate.metric`` on the test split, without padding any row."""
        settings = job.workload.evaluate
        split = load_test(job.dataset, workspace.store, singly=True)
        scored = self._scored_output(job, workspace.store)
        quality = evaluate_batches(
            lambda *inputs: tensors_of(call(*inputs))[scored],
            split.batches(1 if singly else settings.batch_size),
            self.metric(job.workload),
            total=len(split),
            singly=singly,
            progress=workspace.progress,
        )
        if settings.metric == "loss":
            return replace(quality, metrics=quality.metrics | perplexity_metric(quality.value))
        return quality

    def output_names(self, job: Job[CustomWorkload], store: ArtifactStore) -> tuple[str, ...]:
        """Return the names that the model's own ``forward`` gives to its outputs."""
        return output_names(self._structure(job, store))

    def _structure(self, job: Job[CustomWorkload], store: ArtifactStore) -> object:
        """Return the outputs as the user's own ``forward`` returns them."""
        model = call_factory(job.workload.model).eval()
        load_checkpoint(model, job.checkpoint, store)
        with torch.inference_mode():
            return model(*self.example_inputs(job.workload, job.dataset, store, 1).values())

    def _scored_output(self, job: Job[CustomWorkload], store: ArtifactStore) -> int:
        """Return the index of the output that the metric uses."""
        if not (name := job.workload.evaluate.output):
            return 0
        if name not in (known := self.output_names(job, store)):
            raise ConfigurationError(
                f'evaluate.output: the model does not have an output "{name}"{did_you_mean(name, known)}.',
                hint=f"Choose one of the model's outputs: {', '.join(known)}.",
            )
        return known.index(name)

    def train(self, workload: CustomWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Call ``checkpoint.train(model, splits, seed=…, epochs=…, **arguments)``."""
        settings = cast("TrainedByCode", workload.checkpoint)
        splits = _splits(workload, dataset, workspace.store)
        with _seeded(settings.seed):
            model = call_factory(workload.model)
            state = _trained("checkpoint.train", settings, model, splits, settings.seed, settings.epochs)
        return {str(name): tensor.detach().cpu().contiguous() for name, tensor in state.items()}

    def fine_tuning(self, job: Job[CustomWorkload], store: ArtifactStore, batch_size: int) -> OwnTraining:
        """Return a callable that runs the user's ``train`` on a model prepared for quantization-aware training."""
        workload, settings = job.workload, job.workload.training
        assert settings is not None, "validated"
        key = "fine_tune.train" if workload.fine_tune else "checkpoint.train"
        structure = self._structure(job, store)

        def train(model: nn.Module, seed: int, epochs: int) -> None:
            splits = _splits(workload, job.dataset, store)
            with _seeded(seed), structured(model, structure):
                model.load_state_dict(_trained(key, settings, model, splits, seed, epochs))

        arguments = settings.model_dump(mode="json", include={"train", "arguments"})
        return OwnTraining(train, arguments | {"code": user_digest(settings.folder, settings.train)})

    def propose(self, workload: CustomWorkload, workspace: Workspace) -> Proposal:
        """Propose ``evaluate.metric`` and ``data.classes`` for the targets, and ``data.axes`` for collated batches."""
        dataset, store = self.prepare(workload, workspace), workspace.store
        axes, classes = axes_of(dataset, store), read_description(dataset, store).classes
        data: dict[str, object] = {"axes": axes} if axes else {"classes": classes} if classes else {}
        return Proposal(
            sections={"evaluate": {"metric": metric_for(dataset, store)}, "data": data},
            reasons={"data.classes": SORTED} if classes else {},
        )

    def write_resources(self, job: Job[CustomWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write a table's features, means, standard deviations and classes to ``preprocessing.json``."""
        if isinstance(job.workload.data, FactoryData):
            return {}
        keys = {"inputs", "features", "mean", "std", "classes"}
        description = read_description(job.dataset, store).model_dump(mode="json", include=keys)
        formula = {"standardize": "(value - mean) / std for each feature, then float32"}
        return write_preprocessing(description | formula, folder)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), intra_op_threads(THREADS):
        torch.manual_seed(seed)
        yield


def _check_signature(section: str, settings: FineTune) -> None:
    """Raise `ConfigurationError` if the training callable would not accept its arguments, before hours of work."""
    with opened(f"{section}.train", settings.train, settings.folder) as function:
        try:
            signature(function).bind(None, {}, seed=0, epochs=1, **settings.arguments)
        except TypeError as error:
            option = "; `nightquant init` sets them with --train-argument" if section == "checkpoint" else ""
            raise ConfigurationError(
                f'{section}.train "{settings.train}" cannot be called: {error}.',
                hint=f"Correct `arguments` in [{section}]{option}.",
            ) from error


def _trained(
    key: str, settings: FineTune, model: nn.Module, splits: Mapping[str, object], seed: int, epochs: int
) -> Mapping[str, Tensor]:
    """Call the training callable that the workload's `key` names; return the state dict."""
    result = call_user(
        key, settings.train, settings.folder, model, splits, seed=seed, epochs=epochs, **settings.arguments
    )
    state = model.state_dict() if result is None or isinstance(result, nn.Module) else result
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigurationError(
            f'{key} "{settings.train}" returned an object of type {type(result).__name__} instead of None or a state '
            "dict.",
            hint="Train the model in place, or return model.state_dict().",
        )
    return state


def _splits(workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore) -> Mapping[str, object]:
    if workload.data.kind == "factory":
        with _seeded(0):  # the stored splits were also created with seed 0
            return load_splits(workload.data)
    splits = {split: load_samples(dataset, split, store) for split in dataset.splits}
    return {name: TensorDataset(split[split.description.inputs[0]], split.target) for name, split in splits.items()}


def _distance(batch: Mapping[str, Tensor], axes: Axes, name: str, length: int) -> tuple[bool, int]:
    places = [(key, axis) for key, names in axes.items() for axis in names]
    key, axis = next((key, axis) for key, axis in places if axes[key][axis] == name)
    actual = batch[key].shape[axis]
    return actual < length, abs(actual - length)


def open_axes(names: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...]) -> Axes:
    """Return the axis names in ``data.axes``; by default, the first axis of each input is the row axis."""
    if not names:
        return {name: {0: BATCH} for name in inputs}
    return {name: {axis: length for axis, length in enumerate(names.get(name, ())) if length} for name in inputs}


def metric_for(dataset: DatasetRef, store: ArtifactStore) -> str:
    """Return ``mse`` for numeric targets, ``accuracy`` for one class per row, or ``loss`` for other targets."""
    target = load_samples(dataset, "test", store).columns[TARGET]
    first = target.values if target.shapes is None else target[0]
    if first.is_floating_point():
        return "mse"
    return "accuracy" if first.dim() == 1 else "loss"


def axes_of(dataset: DatasetRef, store: ArtifactStore) -> dict[str, list[str]]:
    """Return ``data.axes`` for batches from a collate function, or ``{}``; axes of equal lengths share a name."""
    description = read_description(dataset, store)
    if not description.collated:
        return {}
    # Also compare batches of one row, because another axis may happen to be as long as the batch axis.
    splits = [load_test(dataset, store, singly=singly).columns for singly in (False, True)]
    shapes = {name: list(chain.from_iterable(split[name].shapes or () for split in splits)) for name in splits[0]}
    names: dict[tuple[int, ...], str] = {tuple(shape[0] for shape in shapes[TARGET]): BATCH}
    axes_by_input = {}
    for name in description.inputs:
        axis_lengths = [tuple(shape[axis] for shape in shapes[name]) for axis in range(len(shapes[name][0]))]
        for lengths in axis_lengths:
            if len(set(lengths)) > 1 and lengths not in names:
                names[lengths] = "length" if len(names) == 1 else f"length_{len(names)}"
        axes = [names.get(lengths, "") for lengths in axis_lengths]
        while axes and not axes[-1]:
            axes.pop()
        axes_by_input[name] = axes
    return axes_by_input
