"""The TOML sections of text encoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationInfo, field_validator, model_validator

from storage.errors import InputError
from tasks.domains.text_encoder.directory import read_config, read_pooling
from tasks.workload import base
from tasks.workload.base import Kind, Section, SeededCheckpoint, TableFile
from tasks.workload.workload import SequenceBenchmark, Workload

Pooling = Literal["mean", "cls", "max"]
Metric = Literal["accuracy", "f1-macro", "cosine", "retrieval"]
_OF_CLASSES = ("accuracy", "f1-macro")


class PythonSources(Kind):
    """Comments, docstrings, error messages and code of Python's standard library, to be told apart.

    No module or package of the library has texts in two splits.
    """

    kind: Literal["python-sources"]
    train: PositiveInt = 6000
    """Texts to train on."""
    valid: PositiveInt = 400
    """Texts that training is watched by."""
    test: PositiveInt = 2000
    """Texts that quality is measured on."""
    calibration: PositiveInt = 256
    """Texts of the train split that activations are observed on."""
    seed: int = 0
    """Decides which texts are drawn."""


class TextTable(TableFile):
    """Columns of one Parquet, CSV or JSON lines file: texts, and their classes or texts that mean the same."""

    text: str
    """Column of the texts."""
    label: str | None = None
    """Column of their classes; where the model's configuration names its labels, they must be among these."""
    pair: str | None = None
    """Column of texts that mean the same as those of `text`, for retrieval."""


class EncoderSpec(Kind):
    """What models of both kinds have in common: transformers' configuration, and what is made of its output."""

    task: Literal["classification", "embedding"] = "classification"
    """Logits for classes, or one vector a text."""
    pooling: Pooling = "mean"
    """How an embedding is made of the vectors of a text's tokens."""
    normalize: bool = False
    """Whether embeddings are scaled to length 1."""
    max_length: PositiveInt | None = None
    """Where texts are cut, in tokens; by default at the model's positions, 512 at most."""
    config: dict[str, JsonValue]
    """transformers' configuration."""

    @field_validator("config")
    @classmethod
    def _is_without_code(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if "auto_map" in config:
            raise ValueError(
                "it names Python code of its own (auto_map), which is never run: only transformers' own classes are"
            )
        if not isinstance(config.get("model_type"), str):
            raise ValueError('it names no architecture: model_type, for instance "bert"')
        return config


class EncoderConfig(EncoderSpec):
    """A new model by a configuration of transformers, ``[model.config]``, and a tokenizer trained on the data."""

    kind: Literal["config"]
    vocabulary: PositiveInt = 4000
    """The most entries that the tokenizer may have."""


class EncoderDirectory(EncoderSpec):
    """A Hugging Face directory, found from the workload file's folder: config.json, model.safetensors, tokenizer.json.

    ``config`` is read from it; ``pooling`` and ``normalize`` too where it has the files of sentence-transformers. The
    path decides nothing: the same files elsewhere are the same model.
    """

    kind: Literal["directory"]
    path: str = Field(default="", exclude=True)
    """The directory; a relative path starts at the workload file."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """transformers' configuration: read from the directory."""

    @model_validator(mode="before")
    @classmethod
    def _read_directory(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping) or not isinstance(value.get("path"), str):
            if isinstance(value, Mapping) and "config" not in value:  # which it has where it comes from the store
                raise ValueError("path must name the directory")
            return value
        folder = info.context.get("folder", "") if isinstance(info.context, dict) else ""
        path = Path(folder, value["path"]).expanduser()
        try:
            found: dict[str, object] = {"config": read_config(path)}
            if value.get("task") == "embedding":
                found |= read_pooling(path)
        except InputError as error:
            raise ValueError(error.message) from error
        return found | dict(value) | {"config": found["config"], "path": str(path)}


class DirectoryCheckpoint(Kind):
    """The weights of the model's directory: safetensors only."""

    kind: Literal["directory"]


class TrainedCheckpoint(base.TrainedCheckpoint):
    """Weights trained here by AdamW, warmed up and then falling to zero, with batches of texts of like length."""

    learning_rate: PositiveFloat = 1e-3
    """The highest one, after warming up."""


class Evaluate(Section):
    """``[evaluate]``: the metric that the gate looks at, and how many texts run together."""

    metric: Metric | None = None
    """By default accuracy for classes, retrieval where there are pairs, and else the cosine with the float model."""
    batch_size: PositiveInt = 32
    """Texts of like length in a call."""


class EncoderBenchmark(SequenceBenchmark):
    """``[benchmark]``: what is timed."""

    sequence_length: PositiveInt = 128
    """Tokens of each text in a timed call."""

    @property
    def longest(self) -> int:
        """The most tokens that are timed."""
        return max(self.sequence_length, *self.sequence_lengths, 0)


class EncoderWorkload(Workload):
    """A text encoder."""

    data: Annotated[PythonSources | TextTable, Field(discriminator="kind")]
    model: Annotated[EncoderConfig | EncoderDirectory, Field(discriminator="kind")]
    checkpoint: Annotated[TrainedCheckpoint | DirectoryCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()
    benchmark: EncoderBenchmark = EncoderBenchmark()

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        classifies, data = self.model.task == "classification", self.data
        if classifies and isinstance(data, TextTable) and data.label is None:
            raise ValueError("data.label must name the column of the classes")
        if (self.metric in _OF_CLASSES) != classifies:
            raise ValueError(f'evaluate.metric "{self.metric}" does not fit model.task "{self.model.task}"')
        if self.metric == "retrieval" and not (isinstance(data, TextTable) and data.pair):
            raise ValueError("retrieval needs data.pair, the column of texts that mean the same as data.text")
        if self.checkpoint.kind == "directory" and self.model.kind != "directory":
            raise ValueError('checkpoint.kind "directory" needs model.kind "directory"')
        if self.checkpoint.kind == "train" and not classifies:
            raise ValueError("embeddings are not trained here: bring a model's directory")
        length, limit = self.benchmark.longest, self.model.max_length
        if limit is not None and length > limit:
            raise ValueError(f"benchmark: {length} tokens are beyond model.max_length {limit}")
        return self

    @property
    def metric(self) -> Metric:
        """``evaluate.metric``, or what suits the task and the data."""
        if self.evaluate.metric is not None:
            return self.evaluate.metric
        if self.model.task == "classification":
            return "accuracy"
        return "retrieval" if isinstance(self.data, TextTable) and self.data.pair else "cosine"
