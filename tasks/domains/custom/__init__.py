"""Models of any kind: the user's own module, data and metric."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, JsonValue, PositiveInt, WithJsonSchema, computed_field, model_validator

from storage.errors import did_you_mean
from tasks.data.metrics import METRICS
from tasks.data.sections import BATCH, FactoryData, TableData
from tasks.domains.base import Domain, FineTunes, GivesCalibration, Proposal, Trains
from tasks.workload.base import REFERENCE, FactorySpec, FetchedCheckpoint, FromFile, Kind, Reference, SeededCheckpoint
from tasks.workload.workload import SequenceBenchmark, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.data.metrics import Quality
    from tasks.data.tuning import OwnTraining
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef

OFFERED = [name for name, metric in METRICS.items() if metric.offered]
_OF_OUR_TRAINING = {"batch_size", "learning_rate"}  # keys of a recipe that a callable's training has no use for
_METRIC: dict[str, JsonValue] = {"anyOf": [{"enum": list(OFFERED)}, {"type": "string", "pattern": REFERENCE}]}


class TrainedByCode(Kind):
    """Weights trained here on first use by ``train(model, splits, seed=…, epochs=…, **arguments)``."""

    kind: Literal["train"]
    train: Reference
    """`module:callable` that trains."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is given besides, by name."""
    seed: int = 0
    """torch's seed, and the callable's."""
    epochs: PositiveInt = 1
    """What the callable is told."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def code(self) -> str:
        """Digest of the training's code, which decides the weights as the other keys do."""
        from tasks.sources import user_digest

        return user_digest(self.folder, self.train)


class FineTune(FromFile):
    """How ``qat`` recipes go on training: by ``train(model, splits, seed=…, epochs=…, **arguments)``.

    `seed` and `epochs` are the recipe's. Without this section `[checkpoint]` decides, where that trains.
    """

    train: Reference
    """`module:callable` that trains."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is given besides, by name."""


class Evaluate(FromFile):
    """``[evaluate]``: the metric."""

    metric: Annotated[str, WithJsonSchema(_METRIC)] = Field(pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?$")
    """Its name, or `module:callable`."""
    higher_is_better: bool | None = None
    """The direction of a metric of your own."""
    unit: str = ""
    """The unit of a metric of your own."""
    batch_size: PositiveInt = 32
    """Rows that run together."""

    @model_validator(mode="after")
    def _direction_is_known(self) -> Self:
        if ":" in self.metric:
            if self.higher_is_better is None:
                raise ValueError("a metric of your own needs higher_is_better = true or false")
        elif self.metric not in OFFERED:
            meant = did_you_mean(self.metric, OFFERED)
            expected = ", ".join(OFFERED)
            raise ValueError(f"there is no such metric{meant}: expected module:callable or one of {expected}")
        elif self.higher_is_better is not None or self.unit:
            raise ValueError(f"higher_is_better and unit are for a metric of your own; {self.metric} has its own")
        return self


class CustomBenchmark(SequenceBenchmark):
    """``[benchmark]``: what is timed."""

    # What others have a default for is here as the data have it.
    sequence_length: PositiveInt | None = None  # type: ignore[assignment]
    """Steps in the timed call; by default those of the first test row."""
    sequence_axis: str = ""
    """Which axis that `data.axes` names has the steps, where there are several besides `batch`."""


class CustomWorkload(Workload):
    """A model of any kind."""

    data: Annotated[FactoryData | TableData, Field(discriminator="kind")]
    model: FactorySpec
    checkpoint: Annotated[TrainedByCode | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate
    fine_tune: FineTune | None = None
    """How `qat` recipes go on training."""
    benchmark: CustomBenchmark = CustomBenchmark()

    @model_validator(mode="after")
    def _steps_have_an_axis(self) -> Self:
        if not self.benchmark.sequence_length and not self.benchmark.sequence_lengths:
            return self
        if self.steps not in self._lengths:
            expected = f"one of {', '.join(self._lengths)}" if self._lengths else "an axis that data.axes names"
            raise ValueError(f'benchmark.sequence_axis "{self.benchmark.sequence_axis}": expected {expected}')
        return self

    @property
    def steps(self) -> str:
        """Name of the axis that ``sequence_length`` is of, "" where none is named."""
        return self.benchmark.sequence_axis or (self._lengths[0] if len(self._lengths) == 1 else "")

    @property
    def _lengths(self) -> list[str]:
        axes = self.data.axes if isinstance(self.data, FactoryData) else {}
        return sorted({name for names in axes.values() for name in names} - {"", BATCH})

    @model_validator(mode="after")
    def _can_go_on_training(self) -> Self:
        for recipe in self.recipe:
            if recipe.method == "qat" and self.training is None:
                raise ValueError(
                    f'recipe "{recipe.name}": method "qat" needs [fine_tune] train = "module:callable", '
                    'or checkpoint.kind "train", whose callable goes on training'
                )
            if given := sorted(recipe.model_fields_set & _OF_OUR_TRAINING if recipe.method == "qat" else ()):
                raise ValueError(
                    f'recipe "{recipe.name}": {" and ".join(given)}: your callable trains; give it what it needs '
                    "by fine_tune.arguments"
                )
        return self

    @property
    def training(self) -> FineTune | TrainedByCode | None:
        """The callable that quantization-aware training calls, with its arguments."""
        trains = self.checkpoint if isinstance(self.checkpoint, TrainedByCode) else None
        return self.fine_tune or trains


class Custom(
    Domain[CustomWorkload, FactorySpec],
    GivesCalibration[CustomWorkload],
    Trains[CustomWorkload],
    FineTunes[CustomWorkload],
):
    """The domain ``custom``."""

    workload = CustomWorkload

    def prepare(self, workload: CustomWorkload, workspace: Workspace) -> DatasetRef:
        """Ask the user's code for the splits, or read the table; inputs are named as forward's parameters."""
        from tasks.data.tables import prepare_table
        from tasks.data.user_data import first_input, prepare_factory
        from tasks.data.weights import build_blank
        from tasks.user_code import call_factory

        data, model = workload.data, build_blank(lambda: call_factory(workload.model))
        if isinstance(data, FactoryData):
            return prepare_factory(data, model, workspace)
        return prepare_table(data, first_input(model), workspace)

    def build(self, model: FactorySpec, dataset: DatasetRef) -> nn.Module:
        """Call the user's factory."""
        from tasks.user_code import call_factory

        return call_factory(model).eval()

    def check(self, job: Job[CustomWorkload], workspace: Workspace) -> None:
        """Call the model on its first test rows, and the metric on what it gives."""
        from tasks.data.weights import load_state
        from tasks.domains.custom.evaluation import check_model

        model = self.build(job.workload.model, job.dataset)
        model.load_state_dict(load_state(job.checkpoint, workspace.store))
        check_model(job, model, workspace)

    def axes(self, workload: CustomWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of rows, and what ``data.axes`` names besides."""
        from tasks.domains.custom.axes import open_axes

        return open_axes(_names(workload), tuple(examples))

    def example_inputs(
        self, workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """The first rows of the test split; with ``benchmark.sequence_length``, of that many steps."""
        from tasks.data.samples import read_description
        from tasks.domains.custom.axes import example_rows, open_axes

        axes = open_axes(_names(workload), read_description(dataset, store).inputs)
        length = workload.benchmark.sequence_length
        return example_rows(dataset, axes, store, batch_size, (workload.steps, length) if length else None)

    def evaluate(self, job: Job[CustomWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """``evaluate.metric`` of the test split."""
        from tasks.domains.custom.evaluation import evaluate_custom

        return evaluate_custom(job, call, workspace, apart=apart)

    def train(self, workload: CustomWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Call the user's ``train``."""
        from tasks.domains.custom.training import train_by_code

        return train_by_code(workload, dataset, workspace.store)

    def fine_tuning(self, job: Job[CustomWorkload], store: ArtifactStore, batch_size: int) -> OwnTraining:
        """Call the user's ``train`` on the prepared model."""
        from tasks.domains.custom.training import fine_tuning_by_code

        return fine_tuning_by_code(job, store)

    def cannot_tune(self, workload: CustomWorkload) -> str:
        """Where no callable trains."""
        return "" if workload.training else "[fine_tune] train names no callable"

    def propose(self, workload: CustomWorkload, workspace: Workspace) -> Proposal:
        """Choose a metric for such targets, and the axes whose lengths differ from batch to batch."""
        from tasks.domains.custom.axes import axes_of, metric_for

        dataset = self.prepare(workload, workspace)
        axes = axes_of(dataset, workspace.store)
        metric = metric_for(dataset, workspace.store)
        return Proposal({"evaluate": {"metric": metric}, "data": {"axes": axes} if axes else {}})

    def write_resources(self, job: Job[CustomWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """``preprocessing.json`` of a table: its features, what standardizes them, and the classes."""
        from tasks.data.samples import read_description

        if isinstance(job.workload.data, FactoryData):
            return {}
        described = read_description(job.dataset, store).model_dump(
            mode="json", include={"inputs", "features", "mean", "std", "classes"}
        )
        how = {"standardize": "(value - mean) / std for each feature, then float32"}
        return self.write_preprocessing(described | how, folder)


def _names(workload: CustomWorkload) -> Mapping[str, tuple[str, ...]]:
    return workload.data.axes if isinstance(workload.data, FactoryData) else {}
