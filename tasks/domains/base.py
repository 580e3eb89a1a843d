"""What a domain is: a kind of work with its data, its models, its training and its metrics.

The class of a domain's workloads says what is known without torch, and names the domain's class, whose module imports
torch at its top.
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
Axes = Mapping[str, Mapping[int, str]]  # names of the lengths of axes, by an input's name and the axis
Weights = tuple[Mapping[str, object], Callable[[], Mapping[str, Tensor]]]
PREPROCESSING = "preprocessing.json"


class Domain(ABC, Generic[W, M]):
    """One kind of work; `W` is its class of workloads and `M` the sections that describe its models.

    A domain whose workloads give ``calibration`` or ``fine-tuning`` has the method of that name.
    """

    outputs: ClassVar[tuple[str, ...]] = ()  # names of what its models return; further outputs go by their number
    open_axes: ClassVar[Axes] = {}  # of all workloads; see `axes`
    usage: ClassVar[str] = ""  # how a program makes inputs, by a bundle's files: a Jinja template as `Runtime.usage`

    @abstractmethod
    def prepare(self, workload: W, workspace: Workspace) -> DatasetRef:
        """Make the workload's data set, or find it in the store."""

    @abstractmethod
    def build(self, model: M, dataset: DatasetRef) -> nn.Module:
        """Build a model for a data set, its weights drawn from torch's global generator."""

    def example_inputs(
        self, workload: W, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return real inputs by name, in calling order: what is timed, traced and kept as golden input.

        These are the first samples of the test split, repeated if it is smaller.
        """
        split = load_samples(dataset, "test", store)
        batch = next(split.batches(batch_size, torch.arange(batch_size) % len(split)))
        return dict(zip(split.description.inputs, batch.inputs, strict=True))

    @abstractmethod
    def evaluate(self, job: Job[W], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Compute the quality of a model that can be called.

        Parameters
        ----------
        apart
            Call the model with one row at a time, as it is deployed: what it computes for a row depends on the others
            of the call. Otherwise rows run together in whatever number is fast.

        Raises
        ------
        MeasurementError
            The model computes NaN or infinities, or its outputs do not fit the data.
        """

    def metric(self, workload: W) -> Score | None:
        """Return the metric that the gate looks at, None if it is none of the registered ones."""
        return None

    def axes(self, workload: W, examples: Mapping[str, Tensor]) -> Axes:
        """Return the axes whose lengths differ from call to call, by the inputs' names, named by length."""
        return self.open_axes

    def output_names(self, job: Job[W], store: ArtifactStore) -> tuple[str, ...]:
        """Return the names of a model's first outputs; further ones go by their number."""
        return self.outputs

    def chooses(self, workload: W) -> bool:
        """Return whether the first output ranks classes along its last axis, of which the highest is the answer."""
        return self.outputs[:1] == ("logits",)

    def check(self, job: Job[W], workspace: Workspace) -> None:
        """Refuse a float model that does not fit its data before anything is made of it; ours are tested to fit."""

    def draw_weights(self, workload: W, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """Return the initial state dict for a seed; torch's global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: M = workload.model  # type: ignore[assignment]  # W narrows the section to M
            return self.build(model, dataset).state_dict()

    def weights(self, workload: W, dataset: DatasetRef) -> Weights:
        """Find float weights of a kind that this domain alone has: what decides them, and how to load them."""
        raise NotImplementedError(f"{workload.domain} has no checkpoints of kind {workload.checkpoint.kind}")

    def train(self, workload: W, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train as ``[checkpoint]`` says, deterministic for its seed; return the state dict on the CPU, float32."""
        raise ConfigurationError(
            f'Workload "{workload.name}": checkpoint.kind "train" does not fit domain "{workload.domain}", '
            "which trains no models.",
            hint="Use another checkpoint.kind.",
        )

    def calibration(self, job: Job[W], store: ArtifactStore, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield batches of a model's positional inputs in the order in which the calibration split is stored."""
        return (batch.inputs for batch in load_samples(job.dataset, "calibration", store).batches(batch_size))

    def fine_tuning(self, job: Job[W], store: ArtifactStore, batch_size: int) -> FineTuning | OwnTraining:
        """Return batches, a loss and a score for fine-tuning, or a callable that trains by itself."""
        raise NotImplementedError(f"{job.workload.domain} does not fine-tune models")

    def fit_hint(self, shapes: Mapping[str, tuple[int, ...]], workload: W, dataset: DatasetRef) -> str:
        """Say what to do about a checkpoint with these shapes that does not fit the workload."""
        return "Change [model] to what the checkpoint was made for, or name another checkpoint."

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Return the smallest and largest allowed value of the inputs that index something, by name."""
        return {}

    def propose(self, workload: W, workspace: Workspace) -> Proposal:
        """Choose the keys that data, model and weights decide, for ``nightquant init`` to write."""
        return Proposal()

    def write_resources(self, job: Job[W], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write what turns raw data into inputs and outputs into words into a bundle; file names by what they are."""
        return {}


def write_preprocessing(document: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Write ``preprocessing.json`` into a bundle; return its name by what it is."""
    (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
    return {"preprocessing": PREPROCESSING}
