"""What a domain is: a kind of work with its data, its models, its training and its metrics.

A domain's package imports no torch by itself: its class lives in ``__init__`` beside the TOML sections and imports what
does the work when it is asked for. What a stage of it depends on is found by following these imports.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter

from tasks.extensions import Need
from tasks.machine import require_installed
from tasks.workload.base import Kind
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.data.metrics import Quality
    from tasks.data.tuning import FineTuning, OwnTraining
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef

W = TypeVar("W", bound=Workload)
M = TypeVar("M", bound=Kind)

PREPROCESSING = "preprocessing.json"


@dataclass(frozen=True)
class Proposal:
    """Keys that a drafted workload file gets, by section, and why: ``reasons`` by ``section.key``."""

    sections: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """Float weights that a domain has a source of its own for: what decides them, and how to load the state dict."""

    made_from: Mapping[str, object]
    load: Callable[[], Mapping[str, Tensor]]


class Domain(ABC, Generic[W, M]):
    """One kind of work; `W` is its class of workloads and `M` the sections that describe its models."""

    workload: ClassVar[type[Workload]]  # what its workload files are validated with
    outputs: ClassVar[tuple[str, ...]] = ()  # names of what its models return; further outputs go by their number
    extra: ClassVar[str] = ""  # of this project, which installs what the domain needs; "" where it is always there
    distributions: ClassVar[tuple[str, ...]] = ()  # what must be installed besides
    usage: ClassVar[str] = ""  # how a program makes inputs, by a bundle's files: a Jinja template as `Runtime.usage`

    def require_installed(self, name: str) -> None:
        """Refuse a domain whose libraries are missing: the `UnavailableError` says what installs them."""
        require_installed(f'The domain "{name}"', self.distributions, self.extra)

    def lacks(self, need: Need) -> str:
        """Say why the domain does not give a method what it needs, "" if it does."""
        if need == "calibration":
            return "" if isinstance(self, GivesCalibration) else GivesCalibration.lack
        return "" if isinstance(self, FineTunes) else FineTunes.lack

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

        These are the first samples of the test split, repeated where it is smaller.
        """
        import torch

        from tasks.data.splits import load_samples

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

    def axes(self, workload: W, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Axes of the inputs whose lengths differ from call to call, by the inputs' names, named by length."""
        return {}

    def chooses(self, workload: W) -> bool:
        """Whether the first output ranks classes along its last axis, of which the highest is the answer."""
        return self.outputs[:1] == ("logits",)

    def check(self, job: Job[W], workspace: Workspace) -> None:
        """Refuse a float model that does not fit its data before anything is made of it; ours are tested to fit."""

    def draw_weights(self, workload: W, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """The initial state dict for a seed; torch's global generator is left as it was."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: M = workload.model  # type: ignore[assignment]  # W narrows the section to M
            return self.build(model, dataset).state_dict()

    def parse_model(self, document: Mapping[str, object], folder: str) -> M:
        """The section that describes a model, from JSON; `folder` is its workload file's."""
        field = self.workload.model_fields["model"]
        model: M = TypeAdapter(field.rebuild_annotation()).validate_python(document, context={"folder": folder})
        return model

    def weights(self, workload: W, dataset: DatasetRef) -> Weights:
        """Find float weights of a kind that this domain alone has."""
        raise TypeError(f"{workload.domain} has no checkpoints of kind {workload.checkpoint.kind}")

    def fit_hint(self, shapes: Mapping[str, tuple[int, ...]], workload: W, dataset: DatasetRef) -> str:
        """What to do about a checkpoint with these shapes that does not fit the workload."""
        return "Change [model] to what the checkpoint was made for, or name another checkpoint."

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Smallest and largest allowed value of the inputs that index something, by name."""
        return {}

    def propose(self, workload: W, workspace: Workspace) -> Proposal:
        """Choose the keys that data, model and weights decide, for ``nightquant init`` to write."""
        return Proposal()

    def write_preprocessing(self, document: Mapping[str, object], folder: Path) -> dict[str, str]:
        """Write ``preprocessing.json`` into a bundle; return its name by what it is."""
        (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
        return {"preprocessing": PREPROCESSING}

    def write_resources(self, job: Job[W], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write what turns raw data into inputs and outputs into words into a bundle; file names by what they are."""
        return {}


class GivesCalibration(ABC, Generic[W]):
    """A domain with representative inputs: its models can be quantized statically."""

    lack: ClassVar[str] = "gives no calibration inputs"

    def calibration(self, job: Job[W], store: ArtifactStore, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield batches of a model's positional inputs in the order in which the calibration split is stored."""
        from tasks.data.splits import load_samples

        return (batch.inputs for batch in load_samples(job.dataset, "calibration", store).batches(batch_size))


class Trains(ABC, Generic[W]):
    """A domain whose models can be trained on first use (``checkpoint.kind = "train"``)."""

    lack: ClassVar[str] = "trains no models"

    @abstractmethod
    def train(self, workload: W, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train as ``[checkpoint]`` says, deterministic for its seed; the state dict on the CPU, float32."""


class FineTunes(ABC, Generic[W]):
    """A domain that can go on training a model: quantization-aware training."""

    lack: ClassVar[str] = "does not fine-tune models"

    @abstractmethod
    def fine_tuning(self, job: Job[W], store: ArtifactStore, batch_size: int) -> FineTuning | OwnTraining:
        """What fine-tuning needs: batches, a loss and a score, or a callable that trains by itself."""

    def cannot_tune(self, workload: W) -> str:
        """Why a workload's models cannot be fine-tuned all the same, "" where they can."""
        return ""
