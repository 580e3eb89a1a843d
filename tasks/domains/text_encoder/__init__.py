"""Text encoders: sequence classification and sentence embedding by transformers' own classes.

A model is a Hugging Face directory on this machine, or a new configuration; nothing is downloaded, and no code that
comes with a model is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationInfo, field_validator, model_validator

from storage.digest import JsonObject, read_json
from storage.errors import InputError
from tasks.data.sections import PythonSources, TextTable
from tasks.workload import base
from tasks.workload.base import Kind, Section, SeededCheckpoint
from tasks.workload.workload import SequenceBenchmark, Workload

Pooling = Literal["mean", "cls", "max"]
Metric = Literal["accuracy", "f1-macro", "cosine", "retrieval"]
_OF_CLASSES = ("accuracy", "f1-macro")
CONFIG = "config.json"
# What a configuration says of where it lay or how it was saved, which decides nothing of a model.
_IDLE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
_UNTOLD = 2  # classes, if a configuration says nothing of them: transformers' own default


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

    @property
    def labels(self) -> tuple[str, ...]:
        """The configuration's labels by number; () if a new model takes them from the data."""
        if self.kind == "config" and not self.config.keys() & {"id2label", "num_labels"}:
            return ()
        return labels_of(self.config)

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

    implementation = "tasks.domains.text_encoder.domain:TextEncoder"
    gives = ("calibration",)
    extra = "text"
    distributions = ("transformers", "tokenizers")
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


def read_config(folder: Path) -> JsonObject:
    """``config.json`` without what decides nothing.

    Raises
    ------
    InputError
        There is no such file, or it holds something else.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"{folder}: holds no {CONFIG}; model.path must name a directory as save_pretrained writes it, on this "
            "machine: models are not downloaded by their names"
        )
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object")
    return {key: value for key, value in document.items() if key not in _IDLE}


def is_classifier(config: Mapping[str, object]) -> bool:
    """Whether a configuration names a sequence classifier; else it is an encoder's, for embeddings."""
    named = config.get("architectures")
    return isinstance(named, list) and any("ForSequenceClassification" in str(name) for name in named)


def labels_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """The labels of a classifier's configuration by number, named as transformers does where it has no names."""
    named, count = config.get("id2label"), config.get("num_labels")
    if isinstance(named, Mapping):
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return tuple(f"LABEL_{index}" for index in range(count if isinstance(count, int) else _UNTOLD))


def read_pooling(folder: Path) -> dict[str, object]:
    """``pooling`` and ``normalize`` as sentence-transformers' files say; {} where there are none.

    Raises
    ------
    InputError
        They ask for what is not done here.
    """
    if not (folder / "modules.json").is_file():
        return {}
    modules = read_json(folder / "modules.json")
    found: dict[str, object] = {"normalize": False}
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            settings = read_json(folder / Path(str(module.get("path", ""))).name / CONFIG)
            modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
            named = settings.get("pooling_mode")
            pooling = _MODES.get(modes[0]) if len(modes) == 1 else named if named in _MODES.values() else None
            if pooling is None:
                raise InputError(
                    f"{folder}: pools by {named or ' and '.join(modes) or 'nothing'}; only mean, cls and max are known"
                )
            found["pooling"] = pooling
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind != "Transformer":
            raise InputError(f"{folder}: modules.json names a module of type {kind}, which is not known here")
    return found
