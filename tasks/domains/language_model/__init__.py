"""Word language models: text, an LSTM, cross-entropy loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.data.sections import PydocTopics, TextCorpus
from tasks.domains.base import Domain, Trains
from tasks.workload import base
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.data.metrics import Quality
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef

VOCABULARY = "vocabulary.json"
_AXES: Mapping[str, Mapping[int, str]] = {
    "tokens": {0: "time", 1: "batch"},
    "h": {1: "batch"},
    "c": {1: "batch"},
}


class WordLanguageModelSpec(Kind):
    """Embedding, dropout, LSTM layers, dropout, Linear to the vocabulary (its size comes from the corpus)."""

    kind: Literal["word-lm"]
    embedding_size: PositiveInt = 512
    """Values for each word."""
    hidden_size: PositiveInt = 256
    """Width of the LSTM."""
    layers: PositiveInt = 5
    """Of the LSTM."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """In training."""


class TrainedCheckpoint(base.TrainedCheckpoint):
    """Weights trained here by truncated backpropagation through chunks of words."""

    sequence_length: PositiveInt = 25
    """Words in a chunk."""
    gradient_clip: PositiveFloat | None = None
    """Largest norm of the gradient."""


class Evaluate(Section):
    """``[evaluate]``: the loss on the test split."""

    mode: Literal["segments", "exact"] = "segments"
    """Word by word in sequence (`exact`), or in parallel segments with a warm-up."""
    segments: PositiveInt = 16
    """How many run in parallel."""
    warm_up: PositiveInt = 32
    """Words before each segment that do not count."""
    sequence_length: PositiveInt = 25
    """Words in a call."""


class LanguageModelWorkload(Workload):
    """A word language model on a text corpus."""

    data: Annotated[PydocTopics | TextCorpus, Field(discriminator="kind")]
    model: WordLanguageModelSpec
    checkpoint: Annotated[TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()


class LanguageModel(Domain[LanguageModelWorkload, WordLanguageModelSpec], Trains[LanguageModelWorkload]):
    """The domain ``language-model``."""

    workload = LanguageModelWorkload
    outputs = ("logits", "h", "c")

    def prepare(self, workload: LanguageModelWorkload, workspace: Workspace) -> DatasetRef:
        """Tokenize the corpus."""
        from tasks.data.corpus import prepare_pydoc, prepare_text

        data = workload.data
        return prepare_text(data, workspace) if isinstance(data, TextCorpus) else prepare_pydoc(data, workspace)

    def build(self, model: WordLanguageModelSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network for the corpus's vocabulary."""
        from tasks.domains.language_model.network import build_word_lm

        return build_word_lm(model, dataset)

    def example_inputs(
        self, workload: LanguageModelWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """The first words of the test split, ``benchmark.sequence_length`` in each of `batch_size` columns, from zero.

        A split that is too short is read again from its beginning.
        """
        import torch

        from tasks.data.splits import load_samples
        from tasks.domains.language_model.network import zero_state

        ids = load_samples(dataset, "test", store)["tokens"]
        length = workload.benchmark.sequence_length
        positions = torch.arange(length * batch_size) % len(ids)
        h, c = zero_state(workload.model, batch_size)
        return {"tokens": ids[positions].long().view(batch_size, length).t().contiguous(), "h": h, "c": c}

    def axes(self, workload: LanguageModelWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of words and columns."""
        return _AXES

    def evaluate(
        self, job: Job[LanguageModelWorkload], call: Call, workspace: Workspace, *, apart: bool = False
    ) -> Quality:
        """Loss and perplexity on the test split."""
        from tasks.domains.language_model.stream import evaluate_language_model

        return evaluate_language_model(job, call, workspace, apart=apart)

    def train(self, workload: LanguageModelWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train by truncated backpropagation through time."""
        from tasks.domains.language_model.training import train_language_model

        return train_language_model(workload, dataset, workspace)

    def fit_hint(
        self, shapes: Mapping[str, tuple[int, ...]], workload: LanguageModelWorkload, dataset: DatasetRef
    ) -> str:
        """Read the model's dimensions from the checkpoint's shapes, where they are those of a word language model."""
        encoder, decoder = shapes.get("encoder.weight", ()), shapes.get("decoder.weight", ())
        layers = sum(key.startswith("rnn.weight_hh_l") for key in shapes)
        if len(encoder) != 2 or len(decoder) != 2 or not layers:
            return super().fit_hint(shapes, workload, dataset)
        found = {"embedding_size": encoder[1], "hidden_size": decoder[1], "layers": layers}
        given = {key: getattr(workload.model, key) for key in found}
        hints = [
            f"set model.{key} = {value} (it is {given[key]})" for key, value in found.items() if value != given[key]
        ]
        if (words := encoder[0]) != dataset.vocabulary:
            hints.append(f"use the corpus that it was trained on ({words} words; this one has {dataset.vocabulary})")
        return "To use this checkpoint, " + " and ".join(hints or ["give it the keys of the model"]) + "."

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Word ids beyond the vocabulary would read beyond the embedding's rows."""
        return {"tokens": (0, dataset.vocabulary - 1)}

    def write_resources(self, job: Job[LanguageModelWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Words by id: one JSON array with a word a line."""
        from tasks.data.corpus import load_vocabulary

        words = ",\n".join(json.dumps(word) for word in load_vocabulary(job.dataset, store))
        (folder / VOCABULARY).write_text(f"[\n{words}\n]\n", encoding="ascii")
        return {"vocabulary": VOCABULARY}
