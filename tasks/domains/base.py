"""The base class of domains; a domain's workload class, which does not import torch, names it in ``implementation``."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.data.evaluation import Quality
from tasks.data.outputs import Call
from tasks.data.samples import load_samples
from tasks.data.scores import Score
from tasks.data.training import FineTuning, OwnTraining
from tasks.values.job import Job, Workspace
from tasks.values.refs import DatasetRef
from tasks.values.results import Proposal
from tasks.workload.base import Kind
from tasks.workload.workload import Workload

W = TypeVar("W", bound=Workload)
M = TypeVar("M", bound=Kind)
Axes = Mapping[str, Mapping[int, str]]  # axis names, keyed by input name and axis number
Weights = tuple[Mapping[str, object], Callable[[], Mapping[str, Tensor]]]
PREPROCESSING = "preprocessing.json"


class Domain(ABC, Generic[W, M]):
    """A domain with workloads of class `W` and model sections of class `M`."""

    outputs: ClassVar[tuple[str, ...]] = ()  # names of a model's first outputs; further outputs are numbered
    open_axes: ClassVar[Axes] = {}  # axes whose lengths vary in every workload; see `axes`
    usage: ClassVar[str] = ""  # Jinja template for code that creates inputs from a bundle's files

    @abstractmethod
    def prepare(self, workload: W, workspace: Workspace) -> DatasetRef:
        """Find the workload's data set in the store, or create it."""

    @abstractmethod
    def build(self, model: M, dataset: DatasetRef) -> nn.Module:
        """Build a model for a data set, with random weights from torch's global generator."""

    def example_inputs(
        self, workload: W, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return the first test samples for timing, tracing and golden cases, in argument order and keyed by name."""
        split = load_samples(dataset, "test", store)
        batch = next(split.batches(batch_size, torch.arange(batch_size) % len(split)))
        return dict(zip(split.description.inputs, batch.inputs, strict=True))

    @abstractmethod
    def evaluate(self, job: Job[W], call: Call, workspace: Workspace, *, singly: bool = False) -> Quality:
        """Compute a model's quality; `singly` evaluates each row alone, because rows in a call affect each other."""

    def metric(self, workload: W) -> Score | None:
        """Return the metric that the gate checks, or ``None`` if the metric is not registered."""
        return None

    def axes(self, workload: W, examples: Mapping[str, Tensor]) -> Axes:
        """Return the axes whose lengths differ between calls."""
        return self.open_axes

    def output_names(self, job: Job[W], store: ArtifactStore) -> tuple[str, ...]:
        """Return the names of a model's first outputs; further outputs are numbered."""
        return self.outputs

    def chooses(self, workload: W) -> bool:
        """Return whether the first output contains class scores along its last axis."""
        return self.outputs[:1] == ("logits",)

    def check(self, job: Job[W], workspace: Workspace) -> None:
        """Raise an error if the float model is incompatible with its data."""

    def draw_weights(self, workload: W, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """Return the initial state dict for a seed; the state of torch's global generator does not change."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: M = workload.model  # type: ignore[assignment]  # W narrows the section to M
            return self.build(model, dataset).state_dict()

    def weights(self, workload: W, dataset: DatasetRef) -> Weights:
        """Return values that identify domain-specific weights, and a function that loads these weights."""
        raise NotImplementedError

    def train(self, workload: W, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train reproducibly with the settings in ``[checkpoint]``; return the float32 state dict on the CPU."""
        raise NotImplementedError

    def calibration(self, job: Job[W], store: ArtifactStore, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the calibration split in stored order, as batches of positional inputs."""
        return (batch.inputs for batch in load_samples(job.dataset, "calibration", store).batches(batch_size))

    def fine_tuning(self, job: Job[W], store: ArtifactStore, batch_size: int) -> FineTuning | OwnTraining:
        """Return batches, a loss and a score for fine-tuning, or the user's training callable."""
        raise NotImplementedError

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Return the smallest and largest allowed index for each input that contains indices, keyed by input name."""
        return {}

    def propose(self, workload: W, workspace: Workspace) -> Proposal:
        """Propose workload keys for ``nightquant init``, based on the data, model and weights."""
        return Proposal()

    def write_resources(self, job: Job[W], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write descriptions of a bundle's inputs and outputs to `folder`; return file names, keyed by purpose."""
        return {}


def write_preprocessing(document: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Write ``preprocessing.json`` into a bundle; return the file's name, keyed by its purpose."""
    (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
    return {"preprocessing": PREPROCESSING}
