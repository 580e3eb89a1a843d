"""``[checkpoint]``: the kinds of float weights that fit every domain."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tasks.workload.base import Kind, Sha256


class TrainedCheckpoint(Kind):
    """Weights trained here on first use, deterministic for a seed, and kept by content."""

    kind: Literal["train"]
    seed: int = 0
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3


class FetchedCheckpoint(Kind):
    """Weights from a URI: plain path, ``file://``, ``https://``, ``http://localhost``, or anything fsspec opens."""

    kind: Literal["uri"]
    uri: str
    sha256: Sha256 | None = None
    max_bytes: PositiveInt = 16 * 1024**3
    retries: NonNegativeInt = 4


class SeededCheckpoint(Kind):
    """The random initial weights that a seed gives, as PyTorch's dynamic quantization recipe uses."""

    kind: Literal["seeded"]
    seed: int = 29592
