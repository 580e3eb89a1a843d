"""``[model]`` and ``[checkpoint]``: which network, and where its weights come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tasks.workload.base import Section, Sha256


class WordLanguageModelSpec(Section):
    """Embedding, dropout, LSTM layers, dropout, Linear to the vocabulary (its size comes from the corpus)."""

    kind: Literal["word-lm"]
    embedding_size: PositiveInt = 512
    hidden_size: PositiveInt = 256
    layers: PositiveInt = 5
    dropout: float = Field(default=0.5, ge=0, lt=1)


class LstmSpec(Section):
    """A bare LSTM whose input and hidden sizes are both ``dimension``."""

    kind: Literal["lstm"]
    dimension: PositiveInt = 8
    layers: PositiveInt = 1


class TorchvisionSpec(Section):
    """One of ``torchvision.models.quantization`` by name."""

    kind: Literal["torchvision"]
    name: str = "resnet18"
    num_classes: PositiveInt | None = None


class FactorySpec(Section):
    """The user's own ``torch.nn.Module``, made by calling ``package.module:callable`` with ``arguments``."""

    kind: Literal["factory"]
    factory: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    arguments: dict[str, Any] = Field(default_factory=dict)


Model = Annotated[
    WordLanguageModelSpec | LstmSpec | TorchvisionSpec | FactorySpec,
    Field(discriminator="kind"),
]


class TrainedCheckpoint(Section):
    """Weights trained here on first use, deterministic for a seed, and kept by content."""

    kind: Literal["train"]
    seed: int = 0
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3
    sequence_length: PositiveInt = 25
    gradient_clip: PositiveFloat | None = None


class FetchedCheckpoint(Section):
    """Weights from a URI: plain path, ``file://``, ``https://``, ``http://localhost``, or anything fsspec opens."""

    kind: Literal["uri"]
    uri: str
    sha256: Sha256 | None = None
    max_bytes: PositiveInt = 16 * 1024**3
    retries: NonNegativeInt = 4


class SeededCheckpoint(Section):
    """The random initial weights that a seed gives, as PyTorch's dynamic quantization recipe uses."""

    kind: Literal["seeded"]
    seed: int = 29592


class TorchvisionWeights(Section):
    """torchvision's published weights by enum name, for instance ``ResNet18_Weights.IMAGENET1K_V1``."""

    kind: Literal["torchvision-weights"]
    weights: str


Checkpoint = Annotated[
    TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint | TorchvisionWeights,
    Field(discriminator="kind"),
]
