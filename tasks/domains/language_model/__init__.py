"""Workload sections of the ``language-model`` domain."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.data.sections import PydocTopics, TextCorpus
from tasks.workload import base
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload


class WordLanguageModelSpec(Kind):
    """A next-word model: an Embedding layer, dropout, LSTM layers, dropout, and a Linear layer."""

    kind: Literal["word-lm"]
    embedding_size: PositiveInt = 512
    """Size of a word's embedding."""
    hidden_size: PositiveInt = 256
    """Hidden size of the LSTM layers."""
    layers: PositiveInt = 5
    """Number of LSTM layers."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Fraction of activations to drop during training."""


class TrainedCheckpoint(base.TrainedCheckpoint):
    """Weights that nightquant trains with truncated backpropagation over chunks of words."""

    sequence_length: PositiveInt = 25
    """Number of words in a chunk."""
    gradient_clip: PositiveFloat | None = None
    """Maximum norm of the gradient."""


class Evaluate(Section):
    """The ``[evaluate]`` section controls how the loss on the test split is measured."""

    mode: Literal["segments", "exact"] = "segments"
    """`exact` reads all words in sequence; `segments` reads segments in parallel, each after a warm-up."""
    segments: PositiveInt = 16
    """Number of parallel segments."""
    warm_up: PositiveInt = 32
    """Number of words to read before each segment; the losses of these words are not counted."""
    sequence_length: PositiveInt = 25
    """Number of words per call in `exact` mode."""


class LanguageModelWorkload(Workload):
    """A word language model on a text corpus."""

    implementation = "tasks.domains.language_model.domain:LanguageModel"
    data: Annotated[PydocTopics | TextCorpus, Field(discriminator="kind")]
    model: WordLanguageModelSpec
    checkpoint: Annotated[TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()
