"""The TOML sections of a model, data and a metric of the user's own."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, PositiveInt, computed_field, model_validator

from tasks.domains.custom.names import DIRECTIONS
from tasks.workload.base import (
    FactorySpec,
    FetchedCheckpoint,
    FromFile,
    Kind,
    Reference,
    SeededCheckpoint,
    Sha256,
)
from tasks.workload.workload import Workload


class FactoryData(Kind):
    """Splits that a callable gives: a mapping from ``calibration`` and ``test`` to map-style data sets.

    A data set's items are (inputs, target). ``collate`` makes a batch of a list of ``batch_size`` items; without it
    items of equal shapes are stacked. ``files`` are what the callable reads beside its code: when they change, the data
    are prepared anew. ``axes`` names each input's axes, "" for those of one length; without it axis 0 is ``batch``.
    """

    kind: Literal["factory"]
    factory: Reference
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    collate: Reference | None = None
    batch_size: PositiveInt = 32
    files: tuple[str, ...] = ()
    axes: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class TableData(Kind):
    """Columns of one Parquet or CSV file: ``features`` become float32 [F], ``target`` a class or a number.

    ``split`` names the column that says train, valid, calibration or test; without it shares are drawn by ``seed``.
    Where no row is for calibration, ``calibration`` rows of the train split are. Features are standardized by the
    train split's mean and standard deviation, or left as they are.
    """

    kind: Literal["parquet", "csv"]
    uri: str
    sha256: Sha256 | None = None
    max_bytes: PositiveInt = 4 * 1024**3
    features: tuple[str, ...] = Field(min_length=1)
    target: str
    split: str | None = None
    test_share: float = Field(default=0.2, gt=0, lt=1)
    valid_share: float = Field(default=0.0, ge=0, lt=1)
    calibration: PositiveInt = 256
    seed: int = 0
    standardize: bool = True


class TrainedByCode(Kind):
    """Weights trained here on first use by ``train(model, splits, seed=…, epochs=…, **arguments)``."""

    kind: Literal["train"]
    train: Reference
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int = 0
    epochs: PositiveInt = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def code(self) -> str:
        """Digest of the training's code, which decides the weights as the other keys do."""
        from tasks.sources import user_digest

        return user_digest(self.folder, self.train)


class Evaluate(FromFile):
    """``[evaluate]``: the metric, by name or as a callable whose direction is said, and how many rows run together."""

    metric: str = Field(pattern=r"^[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?$")
    higher_is_better: bool | None = None
    unit: str = ""
    batch_size: PositiveInt = 32

    @model_validator(mode="after")
    def _direction_is_known(self) -> Self:
        if ":" in self.metric:
            if self.higher_is_better is None:
                raise ValueError("a metric of your own needs higher_is_better = true or false")
        elif self.metric not in DIRECTIONS:
            raise ValueError(f"there is no such metric: expected module:callable or one of {', '.join(DIRECTIONS)}")
        elif self.higher_is_better is not None or self.unit:
            raise ValueError(f"higher_is_better and unit are for a metric of your own; {self.metric} has its own")
        return self


class CustomWorkload(Workload):
    """A model of any kind."""

    data: Annotated[FactoryData | TableData, Field(discriminator="kind")]
    model: FactorySpec
    checkpoint: Annotated[TrainedByCode | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate
