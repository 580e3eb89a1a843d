"""Word language models: text, an LSTM, cross-entropy loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.data.sections import PydocTopics, TextCorpus
from tasks.workload import base
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload


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

    implementation = "tasks.domains.language_model.domain:LanguageModel"
    data: Annotated[PydocTopics | TextCorpus, Field(discriminator="kind")]
    model: WordLanguageModelSpec
    checkpoint: Annotated[TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()
