"""Workload sections of the ``custom`` domain: the user's own module, data and metric."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue, PositiveInt, WithJsonSchema, computed_field, model_validator

from storage.errors import did_you_mean
from tasks.data.sections import BATCH, FactoryData, Metric, TableData
from tasks.environment.sources import user_digest
from tasks.workload.base import REFERENCE, FactorySpec, FetchedCheckpoint, FromFile, Kind, Reference, SeededCheckpoint
from tasks.workload.workload import Benchmark, Workload

OFFERED = get_args(Metric)
_BUILT_IN_TRAINING = {"batch_size", "learning_rate"}  # recipe keys that the user's training callable does not use
_METRIC: dict[str, JsonValue] = {"anyOf": [{"enum": list(OFFERED)}, {"type": "string", "pattern": REFERENCE}]}


class FineTune(FromFile):
    """The user's training callable for ``qat`` recipes; by default, the training callable in `[checkpoint]`."""

    train: Reference
    """`module:callable` that trains the model."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Additional keyword arguments for the callable."""


class TrainedByCode(FineTune, Kind):
    """Weights that the user's ``train(model, splits, seed=…, epochs=…, **arguments)`` trains on first use."""

    kind: Literal["train"]
    seed: int = 0
    """Seed for torch's random number generator and for the callable."""
    epochs: PositiveInt = 1
    """Number of epochs to train, passed to the callable."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def code(self) -> str:
        """Digest of the training code, on which the weights depend."""
        return user_digest(self.folder, self.train)


class Evaluate(FromFile):
    """The ``[evaluate]`` section sets the metric."""

    metric: Annotated[str, WithJsonSchema(_METRIC)] = Field(
        pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?$"
    )
    """Name of a built-in metric, or `module:callable` for a custom metric."""
    higher_is_better: bool | None = None
    """Whether higher values of a custom metric are better."""
    unit: str = ""
    """Unit of a custom metric."""
    output: str = ""
    """Name of the output that the metric uses, as shown by `--check`; by default, the first output."""
    batch_size: PositiveInt = 32
    """Number of rows in one call."""

    @model_validator(mode="after")
    def _direction_is_known(self) -> Self:
        if ":" in self.metric:
            if self.higher_is_better is None:
                raise ValueError("a custom metric needs higher_is_better; set higher_is_better to true or false")
        elif self.metric not in OFFERED:
            raise ValueError(
                f'unknown metric "{self.metric}"{did_you_mean(self.metric, OFFERED)}: '
                f"expected module:callable or one of {', '.join(OFFERED)}"
            )
        elif self.higher_is_better is not None or self.unit:
            raise ValueError(f'metric "{self.metric}" already defines higher_is_better and unit; remove these keys')
        return self


class CustomBenchmark(Benchmark):
    """The ``[benchmark]`` section describes the timed calls."""

    sequence_length: PositiveInt | None = None  # type: ignore[assignment]  # by default, the data determines the length
    """Number of steps in a timed call; by default, the length of the first test row."""


class CustomWorkload(Workload):
    """A workload for a model of any kind."""

    implementation = "tasks.domains.custom.domain:Custom"
    provides = ("calibration", "fine-tuning")
    data: Annotated[FactoryData | TableData, Field(discriminator="kind")]
    model: FactorySpec
    checkpoint: Annotated[TrainedByCode | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate
    fine_tune: FineTune | None = None
    """Callable that continues training in `qat` recipes."""
    benchmark: CustomBenchmark = CustomBenchmark()

    @model_validator(mode="after")
    def _steps_have_an_axis(self) -> Self:
        if self.benchmark.sequence_length and not self.steps:
            raise ValueError(
                "benchmark.sequence_length needs data.axes with exactly one named axis besides batch, the steps"
            )
        return self

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Names of each input's axes; the mapping is empty if the data is a table."""
        return self.data.axes if isinstance(self.data, FactoryData) else {}

    @property
    def steps(self) -> str:
        """Name of the axis whose length is ``sequence_length``; ``""`` if the axis is unknown."""
        lengths = {name for names in self.axes.values() for name in names} - {"", BATCH}
        return lengths.pop() if len(lengths) == 1 else ""

    @model_validator(mode="after")
    def _qat_recipes_can_train(self) -> Self:
        for recipe in self.recipe:
            if recipe.method == "qat" and self.training is None:
                raise ValueError(
                    f'method "qat" of recipe "{recipe.name}" needs a training callable; set '
                    'train = "module:callable" in [fine_tune], or use checkpoint.kind "train"'
                )
            if keys := sorted(recipe.model_fields_set & _BUILT_IN_TRAINING if recipe.method == "qat" else ()):
                raise ValueError(
                    f'recipe "{recipe.name}" sets {" and ".join(keys)}, which cannot be combined with a training '
                    "callable; move these settings to the callable's arguments"
                )
        return self

    @property
    def training(self) -> FineTune | None:
        """The callable for quantization-aware training, and its arguments."""
        return self.fine_tune or (self.checkpoint if isinstance(self.checkpoint, TrainedByCode) else None)

    def cannot_tune(self) -> str:
        """Return a message if the workload does not name a training callable; otherwise, return ``""``."""
        return "" if self.training else "[fine_tune] train is not set"
