"""Base classes for the sections of workload files in every domain, and the kinds of float weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    StringConstraints,
)

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# A callable in the user's code, written as ``package.module:callable`` or ``package.module:Class.method``.
REFERENCE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
Reference = Annotated[str, StringConstraints(pattern=REFERENCE)]


class Section(BaseModel):
    """A section of a workload file; the string after a key is the key's description."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FromFile(Section):
    """A section that knows its workload file's folder, which is not part of the section's content or digest."""

    _folder: str = PrivateAttr(default="")

    def model_post_init(self, context: object, /) -> None:
        """Set the folder from the validation context."""
        if isinstance(context, dict):
            self._folder = str(context.get("folder", ""))

    @property
    def folder(self) -> str:
        """Absolute path of the workload file's folder, or ``""`` if the section was not read from a file."""
        return self._folder


class Kind(FromFile):
    """A section with a ``kind`` key, which determines the section's other keys."""

    kind: str


class TrainedCheckpoint(Kind):
    """Weights that are trained on first use and stored under a content hash.

    The same seed always produces the same weights.
    """

    kind: Literal["train"]
    seed: int = 0
    """Seed for the initial weights and the order of the samples."""
    epochs: PositiveInt = 1
    """Number of passes over the `train` split."""
    batch_size: PositiveInt = 32
    """Number of samples per training step."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate of the optimizer."""


class FetchedCheckpoint(Kind):
    """Weights from a path or URI: ``file://``, ``https://``, ``http://localhost``, or a scheme that fsspec supports."""

    kind: Literal["uri"]
    uri: str
    """Path or URI of the weights file, or path of a local folder with `model.safetensors`."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the file, as 64 hexadecimal digits."""
    leave_out: tuple[str, ...] = ()
    """Tensors in the file that the model lacks, given by their names or the names of their modules."""


class SeededCheckpoint(Kind):
    """Random initial weights, generated from a seed as in PyTorch's "Dynamic Quantization" recipe."""

    kind: Literal["seeded"]
    seed: int = 29592
    """Seed for the weights."""


class FactorySpec(Kind):
    """Your own ``torch.nn.Module``, created by calling ``package.module:callable`` with ``arguments``."""

    kind: Literal["factory"]
    factory: Reference
    """`module:callable` that returns the model; the workload file's folder is searched first."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments for the callable."""


class TableFile(Kind):
    """A Parquet, CSV or JSON Lines file whose rows are divided into splits."""

    kind: Literal["parquet", "csv", "jsonl"]
    uri: str
    """Path (relative to the workload file's folder) or URI of the file."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the file."""
    split: str | None = None
    """Column that assigns rows to `train`, `valid`, `calibration` or `test`; by default, rows are split at random."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Fraction of the rows to put in the `test` split."""
    valid_share: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the rows to put in the `valid` split."""
    calibration: PositiveInt = 256
    """Number of `train` rows to use for calibration; ignored if the split column marks rows as `calibration`."""
    seed: int = 0
    """Seed for drawing rows at random."""
