"""Models of any kind: the user's own module, data and metric."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue, PositiveInt, WithJsonSchema, computed_field, model_validator

from storage.errors import did_you_mean
from tasks.data.sections import BATCH, FactoryData, Metric, TableData
from tasks.sources import user_digest
from tasks.workload.base import REFERENCE, FactorySpec, FetchedCheckpoint, FromFile, Kind, Reference, SeededCheckpoint
from tasks.workload.workload import SequenceBenchmark, Workload

OFFERED = get_args(Metric)
_OF_OUR_TRAINING = {"batch_size", "learning_rate"}  # keys of a recipe that a callable's training has no use for
_METRIC: dict[str, JsonValue] = {"anyOf": [{"enum": list(OFFERED)}, {"type": "string", "pattern": REFERENCE}]}


class FineTune(FromFile):
    """How ``qat`` recipes go on training: by ``train(model, splits, seed=…, epochs=…, **arguments)``.

    `seed` and `epochs` are the recipe's. Without this section `[checkpoint]` decides, where that trains.
    """

    train: Reference
    """`module:callable` that trains."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is given besides, by name."""


class TrainedByCode(FineTune, Kind):
    """Weights trained here on first use by ``train(model, splits, seed=…, epochs=…, **arguments)``."""

    kind: Literal["train"]
    seed: int = 0
    """torch's seed, and the callable's."""
    epochs: PositiveInt = 1
    """What the callable is told."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def code(self) -> str:
        """Digest of the training's code, which decides the weights as the other keys do."""
        return user_digest(self.folder, self.train)


class Evaluate(FromFile):
    """``[evaluate]``: the metric."""

    metric: Annotated[str, WithJsonSchema(_METRIC)] = Field(pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?$")
    """Its name, or `module:callable`."""
    higher_is_better: bool | None = None
    """The direction of a metric of your own."""
    unit: str = ""
    """The unit of a metric of your own."""
    output: str = ""
    """Which output the metric takes, by the name that `--check` shows; the first if none is named."""
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

    implementation = "tasks.domains.custom.domain:Custom"
    gives = ("calibration", "fine-tuning")
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
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Names of each input's axes; a table has none."""
        return self.data.axes if isinstance(self.data, FactoryData) else {}

    @property
    def steps(self) -> str:
        """Name of the axis that ``sequence_length`` is of, "" if none is named."""
        return self.benchmark.sequence_axis or (self._lengths[0] if len(self._lengths) == 1 else "")

    @property
    def _lengths(self) -> list[str]:
        return sorted({name for names in self.axes.values() for name in names} - {"", BATCH})

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
    def training(self) -> FineTune | None:
        """The callable that quantization-aware training calls, with its arguments."""
        trains = self.checkpoint if isinstance(self.checkpoint, TrainedByCode) else None
        return self.fine_tune or trains

    def cannot_tune(self) -> str:
        """Say that no callable trains, if none does."""
        return "" if self.training else "[fine_tune] train names no callable"
