"""The TOML sections of word language models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.workload import base
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint, Sha256
from tasks.workload.workload import Workload


class PydocTopics(Kind):
    """Python's own language reference, which every CPython carries, split into train, valid and test by topic."""

    kind: Literal["pydoc-topics"]
    seed: int = 0


class TextCorpus(Kind):
    """Text in WikiText's layout: ``train/valid/test.txt`` or ``wiki.{train,valid,test}.tokens``.

    ``uri`` is a directory or a .zip/.tar.gz archive, a local path or a URL.
    """

    kind: Literal["text"]
    uri: str
    sha256: Sha256 | None = None
    max_bytes: PositiveInt = 4 * 1024**3


class WordLanguageModelSpec(Kind):
    """Embedding, dropout, LSTM layers, dropout, Linear to the vocabulary (its size comes from the corpus)."""

    kind: Literal["word-lm"]
    embedding_size: PositiveInt = 512
    hidden_size: PositiveInt = 256
    layers: PositiveInt = 5
    dropout: float = Field(default=0.5, ge=0, lt=1)


class TrainedCheckpoint(base.TrainedCheckpoint):
    """Weights trained here by truncated backpropagation through chunks of ``sequence_length`` words."""

    sequence_length: PositiveInt = 25
    gradient_clip: PositiveFloat | None = None


class Evaluate(Section):
    """``[evaluate]``: the loss word by word in sequence (``exact``), or in parallel segments with a warm-up."""

    mode: Literal["segments", "exact"] = "segments"
    segments: PositiveInt = 16
    warm_up: PositiveInt = 32
    sequence_length: PositiveInt = 25


class LanguageModelWorkload(Workload):
    """A word language model on a text corpus."""

    data: Annotated[PydocTopics | TextCorpus, Field(discriminator="kind")]
    model: WordLanguageModelSpec
    checkpoint: Annotated[TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()
