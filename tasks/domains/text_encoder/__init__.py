"""Text encoders: sequence classification and sentence embedding with transformers' own classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, JsonValue, PositiveInt, ValidationInfo, field_validator, model_validator

from storage.digest import JsonObject, read_json
from storage.errors import InputError
from tasks.data.sections import PythonSources, TextTable
from tasks.workload.base import Kind, Section, SeededCheckpoint, TrainedCheckpoint
from tasks.workload.workload import Benchmark, Workload

Pooling = Literal["mean", "cls", "max"]
Task = Literal["classification", "embedding"]
Metric = Literal["accuracy", "f1-macro", "cosine", "retrieval"]
_OF_CLASSES = ("accuracy", "f1-macro")
CONFIG = "config.json"
# Keys that record how a configuration was saved, but do not affect the model.
_IDLE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
_DEFAULT_LABELS = ("LABEL_0", "LABEL_1")  # transformers' labels if the configuration does not name any


class EncoderSpec(Kind):
    """A ``[model]`` section with the keys that all text encoders share."""

    task: Task = "classification"
    """Whether the model returns class logits (`classification`) or one vector per text (`embedding`)."""
    pooling: Pooling = "mean"
    """Method for combining a text's token vectors into one embedding."""
    normalize: bool = False
    """Whether to scale embeddings to length 1."""
    max_length: PositiveInt | None = None
    """Maximum number of tokens; longer texts are truncated. The default is the model's maximum, but at most 512."""
    config: dict[str, JsonValue]
    """Model configuration in the format that transformers uses."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The configuration's labels, indexed by class number; ``()`` if a new model takes its labels from the data."""
        labels = self.config.get("id2label")
        if isinstance(labels, dict):
            return tuple(str(labels[key]) for key in sorted(labels, key=int))
        return () if self.kind == "config" else _DEFAULT_LABELS

    @field_validator("config")
    @classmethod
    def _is_without_code(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if "auto_map" in config:
            raise ValueError("auto_map names Python code, which nightquant never runs; use a transformers class")
        if "quantization_config" in config:
            raise ValueError("quantization_config marks a quantized model; use the float model")
        return config


class EncoderConfig(EncoderSpec):
    """A new model from a transformers configuration, ``[model.config]``, with a tokenizer trained on the data."""

    kind: Literal["config"]
    vocabulary: PositiveInt = 4000
    """Maximum number of entries in the tokenizer's vocabulary."""


class EncoderDirectory(EncoderSpec):
    """A Hugging Face directory with ``config.json``, ``model.safetensors`` and ``tokenizer.json``.

    For embeddings, ``pooling`` and ``normalize`` default to the values in the sentence-transformers files.
    """

    kind: Literal["directory"]
    path: str = Field(default="", exclude=True)
    """Path of the directory, relative to the workload file's folder."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Model configuration, always read from the directory."""

    @model_validator(mode="before")
    @classmethod
    def _read_directory(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping) or not isinstance(value.get("path"), str):
            if isinstance(value, Mapping) and "config" not in value:  # a stored section already contains `config`
                raise ValueError("path is missing or is not a string; set path to the directory of the model")
            return value
        folder = info.context.get("folder", "") if isinstance(info.context, dict) else ""
        path = Path(folder, value["path"]).expanduser()
        try:
            keys: dict[str, object] = {"config": read_config(path)}
            if value.get("task") == "embedding":
                keys |= read_pooling(path)
        except InputError as error:
            raise ValueError(error.message) from error
        return keys | dict(value) | {"config": keys["config"], "path": str(path)}


class DirectoryCheckpoint(Kind):
    """The safetensors weights in the model's directory."""

    kind: Literal["directory"]


class Evaluate(Section):
    """The ``[evaluate]`` section sets the metric that the gate checks, and the batch size."""

    metric: Metric | None = None
    """Metric name; by default, `accuracy` for classes, `retrieval` for pairs, and `cosine` for other embeddings."""
    batch_size: PositiveInt = 32
    """Number of texts in one call; the texts in a call have similar lengths."""


class EncoderBenchmark(Benchmark):
    """The ``[benchmark]`` section describes the timed calls."""

    sequence_length: PositiveInt = 128
    """Number of tokens per text in a timed call."""


class EncoderWorkload(Workload):
    """A text encoder."""

    implementation = "tasks.domains.text_encoder.domain:TextEncoder"
    provides = ("calibration",)
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
            raise ValueError("data.label is missing; set data.label to the column that contains the classes")
        if (self.metric in _OF_CLASSES) != classifies:
            suitable = [name for name in get_args(Metric) if (name in _OF_CLASSES) == classifies]
            raise ValueError(
                f'evaluate.metric "{self.metric}" is not compatible with model.task "{self.model.task}"; '
                f"use {' or '.join(suitable)}"
            )
        if self.metric == "retrieval" and not (isinstance(data, TextTable) and data.pair):
            raise ValueError('evaluate.metric "retrieval" needs data.pair; set data.pair to the column of paired texts')
        if self.checkpoint.kind == "directory" and self.model.kind != "directory":
            raise ValueError('checkpoint.kind "directory" needs model.kind "directory"; change one of the two keys')
        if self.checkpoint.kind == "train" and not classifies:
            raise ValueError('checkpoint.kind "train" does not support model.task "embedding"; use a trained model')
        return self

    @property
    def metric(self) -> Metric:
        """Value of ``evaluate.metric``, or the default metric for the task and the data."""
        if self.evaluate.metric is not None:
            return self.evaluate.metric
        if self.model.task == "classification":
            return "accuracy"
        return "retrieval" if isinstance(self.data, TextTable) and self.data.pair else "cosine"


def read_config(folder: Path) -> JsonObject:
    """Read ``config.json``, omitting keys that do not affect the model."""
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"{folder} does not contain {CONFIG}; set model.path to a directory written by save_pretrained"
        )
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path} does not contain a JSON object; save the model again with save_pretrained")
    return {key: value for key, value in document.items() if key not in _IDLE}


def is_classifier(config: Mapping[str, object]) -> bool:
    """Return whether a configuration names a sequence classifier rather than an encoder for embeddings."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any("ForSequenceClassification" in str(name) for name in architectures)


def read_pooling(folder: Path) -> dict[str, object]:
    """Read ``pooling`` and ``normalize`` from sentence-transformers' files; return ``{}`` if the files do not exist."""
    if not (folder / "modules.json").is_file():
        return {}
    modules = read_json(folder / "modules.json")
    keys: dict[str, object] = {"normalize": False}
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            settings = read_json(folder / Path(str(module.get("path", ""))).name / CONFIG)
            modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
            name = settings.get("pooling_mode") or " and ".join(_MODES.get(mode, mode) for mode in modes)
            if name not in _MODES.values():
                raise InputError(
                    f"the pooling mode in {folder} is {name}, which is not supported; use mean, cls or max"
                )
            keys["pooling"] = name
        elif kind == "Normalize":
            keys["normalize"] = True
        elif kind != "Transformer":
            raise InputError(f"modules.json in {folder} lists a {kind} module, which is not supported")
    return keys
