"""Text encoders: sequence classification and sentence embedding by transformers' own classes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationInfo, field_validator, model_validator

from storage.errors import InputError
from tasks.data.sections import PythonSources, TextTable
from tasks.domains.base import Domain, GivesCalibration, Proposal, Trains, Weights
from tasks.domains.text_encoder.directory import TOKENIZER, read_config, read_pooling
from tasks.workload import base
from tasks.workload.base import Kind, Section, SeededCheckpoint
from tasks.workload.workload import SequenceBenchmark, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.data.metrics import Quality
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef

Pooling = Literal["mean", "cls", "max"]
Metric = Literal["accuracy", "f1-macro", "cosine", "retrieval"]
_OF_CLASSES = ("accuracy", "f1-macro")
_AXES: Mapping[int, str] = {0: "batch", 1: "tokens"}
_INPUTS = ("input_ids", "attention_mask")
_USE = (
    "tokenizers.Tokenizer.from_file('tokenizer.json').encode_batch(texts) cuts texts at max_length and pads them: ids "
    "are the rows of input_ids, attention_mask those of attention_mask, both int64"
)


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


class TextEncoder(
    Domain[EncoderWorkload, EncoderSpec],
    GivesCalibration[EncoderWorkload],
    Trains[EncoderWorkload],
):
    """The domain ``text-encoder``."""

    workload = EncoderWorkload
    extra = "text"
    distributions = ("transformers", "tokenizers")
    usage = """\
{% set tensor = "numpy.array" if m.model.runtime in ("onnxruntime", "openvino") else "torch.tensor" %}
{% set batch, length = m.model.inputs[0].shape %}
import {{ tensor.partition(".")[0] }}
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")  # cuts texts where the model ends, and pads them to the longest
{% if m.model.runtime == "openvino" %}
tokenizer.enable_truncation({{ length }})  # as the model is reshaped to below; without, any length
tokenizer.enable_padding(**tokenizer.padding | {"length": {{ length }}})
{% endif %}
rows = tokenizer.encode_batch(["a text"] * {{ batch }})
input_ids, attention_mask = {{ tensor }}([row.ids for row in rows]), {{ tensor }}([row.attention_mask for row in rows])

"""

    def prepare(self, workload: EncoderWorkload, workspace: Workspace) -> DatasetRef:
        """Tokenize the texts."""
        from tasks.domains.text_encoder.prepare import prepare_texts

        return prepare_texts(workload, workspace)

    def build(self, model: EncoderSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network of the configuration."""
        from tasks.domains.text_encoder.network import build_encoder

        return build_encoder(model, dataset)

    def example_inputs(
        self, workload: EncoderWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """``benchmark.sequence_length`` tokens of the test texts in each of `batch_size` rows, without padding."""
        from tasks.domains.text_encoder.texts import example_batch

        return example_batch(dataset, store, workload.benchmark.sequence_length, batch_size)

    def axes(self, workload: EncoderWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of texts and tokens."""
        return dict.fromkeys(_INPUTS, _AXES)

    def evaluate(self, job: Job[EncoderWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """``evaluate.metric`` of the test split."""
        from tasks.domains.text_encoder.evaluation import evaluate_encoder

        return evaluate_encoder(job, call, workspace, apart=apart)

    def calibration(
        self, job: Job[EncoderWorkload], store: ArtifactStore, batch_size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """The calibration split in its order, padded within each batch."""
        from tasks.domains.text_encoder.texts import load_texts

        texts = load_texts(job.dataset, "calibration", store)
        rows = range(len(texts))
        return (texts.padded(rows[start : start + batch_size]) for start in range(0, len(texts), batch_size))

    def train(self, workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train the classifier."""
        from tasks.domains.text_encoder.training import train_encoder

        return train_encoder(workload, dataset, workspace)

    def weights(self, workload: EncoderWorkload, dataset: DatasetRef) -> Weights:
        """Find the weights of the model's directory."""
        from storage.digest import file_digest
        from tasks.domains.text_encoder.directory import weight_files
        from tasks.domains.text_encoder.network import read_directory
        from tasks.machine import installed_version
        from tasks.sources import code_digest

        spec = workload.model
        assert isinstance(spec, EncoderDirectory)
        made_from = {
            "files": [file_digest(path) for path in weight_files(Path(spec.path))],
            "model": spec.model_dump(mode="json"),
            "transformers": installed_version("transformers"),
            "code": code_digest(read_directory.__module__),
        }
        return Weights(made_from, lambda: read_directory(spec))

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Ids beyond the vocabulary would read beyond the embedding's rows."""
        return {"input_ids": (0, dataset.vocabulary - 1), "attention_mask": (0, 1)}

    def propose(self, workload: EncoderWorkload, workspace: Workspace) -> Proposal:
        """Choose fewer tokens for a timed call if the model has positions for fewer."""
        from tasks.data.weights import build_blank
        from tasks.domains.text_encoder.network import build_encoder, longest_text

        longest = longest_text(build_blank(lambda: build_encoder(workload.model)))
        timed = workload.benchmark.sequence_length
        return Proposal({"benchmark": {"sequence_length": longest}} if longest < timed else {})

    def write_resources(self, job: Job[EncoderWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """The tokenizer, and how texts become inputs and outputs become classes."""
        from tasks.data.samples import read_description

        tokenizer = store.path(job.dataset.kind, job.dataset.digest) / TOKENIZER
        shutil.copyfile(tokenizer, folder / TOKENIZER)
        described, spec = read_description(job.dataset, store), job.workload.model
        document: dict[str, object] = {
            "inputs": _USE,
            "max_length": described.max_length,
            "padding": described.padding,
        }
        if spec.task == "classification":
            document |= {"outputs": "logits; the largest is the class", "labels": described.classes}
        else:
            document |= {"outputs": "one vector a text; texts of like meaning have a high cosine"}
        return {"tokenizer": TOKENIZER} | self.write_preprocessing(document, folder)
