"""The base class of domains: a domain provides the data, models, training and metrics of one kind of work.

A domain's workload class works without torch, and names the `Domain` class in its ``implementation``. Only the module
of the `Domain` class imports torch.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.data.evaluation import Quality
from tasks.data.samples import load_samples
from tasks.data.scores import Score
from tasks.data.training import FineTuning, OwnTraining
from tasks.job import Job, Workspace
from tasks.outputs import Call
from tasks.refs import DatasetRef
from tasks.results import Proposal
from tasks.workload.base import Kind
from tasks.workload.workload import Workload

W = TypeVar("W", bound=Workload)
M = TypeVar("M", bound=Kind)
Axes = Mapping[str, Mapping[int, str]]  # names of axis lengths, by input name and axis number
Weights = tuple[Mapping[str, object], Callable[[], Mapping[str, Tensor]]]
PREPROCESSING = "preprocessing.json"


class Domain(ABC, Generic[W, M]):
    """One kind of work, with workloads of class `W` and model sections of class `M`.

    A domain implements `calibration` or `fine_tuning` if its workload class lists the need in ``gives``.
    """

    outputs: ClassVar[tuple[str, ...]] = ()  # names of the models' first outputs; later outputs get numbers
    open_axes: ClassVar[Axes] = {}  # the axes of every workload; see `axes`
    usage: ClassVar[str] = ""  # a Jinja template, like `Runtime.usage`, that makes inputs from a bundle's files

    @abstractmethod
    def prepare(self, workload: W, workspace: Workspace) -> DatasetRef:
        """Find the workload's data set in the store, or create it."""

    @abstractmethod
    def build(self, model: M, dataset: DatasetRef) -> nn.Module:
        """Build a model for a data set, with weights from torch's global generator."""

    def example_inputs(
        self, workload: W, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return real inputs by name, in calling order, for timing, tracing and golden cases.

        They are the first samples of the test split. A split that is too small is repeated.
        """
        split = load_samples(dataset, "test", store)
        batch = next(split.batches(batch_size, torch.arange(batch_size) % len(split)))
        return dict(zip(split.description.inputs, batch.inputs, strict=True))

    @abstractmethod
    def evaluate(self, job: Job[W], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Compute the quality of a model.

        Parameters
        ----------
        apart
            Call the model with one row at a time, because its result for a row depends on the other rows in the call.
            Otherwise, call it with batches of a fast size.

        Raises
        ------
        MeasurementError
            The model computes NaN or infinities, or its outputs do not fit the data.
        """

    def metric(self, workload: W) -> Score | None:
        """Return the metric that the gate checks; None if the metric is not registered."""
        return None

    def axes(self, workload: W, examples: Mapping[str, Tensor]) -> Axes:
        """Return the axes whose lengths differ between calls."""
        return self.open_axes

    def output_names(self, job: Job[W], store: ArtifactStore) -> tuple[str, ...]:
        """Return the names of a model's first outputs; later outputs get numbers."""
        return self.outputs

    def chooses(self, workload: W) -> bool:
        """Return whether the first output contains class scores along its last axis."""
        return self.outputs[:1] == ("logits",)

    def check(self, job: Job[W], workspace: Workspace) -> None:
        """Refuse a float model that does not fit its data; built-in models always fit."""

    def draw_weights(self, workload: W, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """Return the initial state dict for a seed; the state of torch's global generator does not change."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: M = workload.model  # type: ignore[assignment]  # W narrows the section to M
            return self.build(model, dataset).state_dict()

    def weights(self, workload: W, dataset: DatasetRef) -> Weights:
        """Return values that identify weights of a kind that only this domain has, and a function that loads them."""
        raise NotImplementedError(f"{workload.domain} has no checkpoints of kind {workload.checkpoint.kind}")

    def train(self, workload: W, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train with the settings of ``[checkpoint]``, reproducibly; return the float32 state dict on the CPU."""
        raise ConfigurationError(
            f'Workload "{workload.name}": domain "{workload.domain}" does not support checkpoint.kind "train".',
            hint="Use another checkpoint.kind.",
        )

    def calibration(self, job: Job[W], store: ArtifactStore, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield batches of positional inputs in the stored order of the calibration split."""
        return (batch.inputs for batch in load_samples(job.dataset, "calibration", store).batches(batch_size))

    def fine_tuning(self, job: Job[W], store: ArtifactStore, batch_size: int) -> FineTuning | OwnTraining:
        """Return batches, a loss and a score for fine-tuning, or the user's training callable."""
        raise NotImplementedError(f"{job.workload.domain} does not fine-tune models")

    def fit_hint(self, shapes: Mapping[str, tuple[int, ...]], workload: W, dataset: DatasetRef) -> str:
        """Return a hint for a checkpoint whose shapes do not fit the workload."""
        return "Set [model] to the model that the checkpoint was made for, or use another checkpoint."

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Return the smallest and largest allowed value of each input that contains indices, by name."""
        return {}

    def propose(self, workload: W, workspace: Workspace) -> Proposal:
        """Choose workload keys from the data, model and weights for ``nightquant init``."""
        return Proposal()

    def write_resources(self, job: Job[W], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write files into a bundle that describe inputs and outputs; return file names by purpose."""
        return {}


def write_preprocessing(document: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Write ``preprocessing.json`` into a bundle; return its name by purpose."""
    (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
    return {"preprocessing": PREPROCESSING}
