"""Registries of extensions, base classes for the sections of workload files, and the kinds of float weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, Generic, Literal, TypeVar

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

from storage.errors import did_you_mean

T = TypeVar("T")

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# A callable in the user's code, written as ``package.module:callable`` or ``package.module:Class.method``.
REFERENCE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
Reference = Annotated[str, StringConstraints(pattern=REFERENCE)]


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Registry that maps names to subclasses of `T` (``"module:class"``), which it imports on first use.

    The first entry is the default.
    """

    kind: str
    entries: Mapping[str, str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> type[T]:
        """Import a registered class; raise ValueError if the name is unknown."""
        found: type[T] = resolve_name(self.entries[self.known(name)])
        return found

    def known(self, name: str) -> str:
        """Return the name; raise ValueError if it is unknown."""
        if name not in self.entries:
            suggestion = did_you_mean(name, self.entries)
            raise ValueError(f'unknown {self.kind} "{name}"{suggestion}: expected one of {", ".join(self.entries)}')
        return name

    @property
    def default(self) -> str:
        """Name of the first entry, which is the default."""
        return next(iter(self.entries))


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
