"""What workload files of every domain have in common: their sections' base classes, and kinds of float weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    StringConstraints,
)

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
_MOST_TEXT = 10_000
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# A callable of the user's own: package.module:callable.
REFERENCE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
Reference = Annotated[str, StringConstraints(pattern=REFERENCE)]


def _check_text(text: str) -> str:
    if any(not character.isprintable() and character not in "\n\t" for character in text):
        raise ValueError("it holds control characters, which a terminal would obey")
    return text


# What people wrote for people: terminals, reports and model cards show it.
PlainText = Annotated[str, StringConstraints(max_length=_MOST_TEXT), AfterValidator(_check_text)]


class Section(BaseModel):
    """A frozen part of a workload file; unknown keys are refused, and what a key means stands below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FromFile(Section):
    """A section that knows the folder of its file, where the user's code is looked for first.

    The folder is part of neither its content nor its digest: the same workload elsewhere is the same workload.
    """

    _folder: str = PrivateAttr(default="")

    def model_post_init(self, context: object, /) -> None:
        """Take the folder from the context of the validation."""
        if isinstance(context, dict):
            self._folder = str(context.get("folder", ""))

    @property
    def folder(self) -> str:
        """Absolute path, "" where the section was read from no file."""
        return self._folder


class Kind(FromFile):
    """A section that comes in several kinds; ``kind`` tells them apart."""

    kind: str


class TrainedCheckpoint(Kind):
    """Weights trained here on first use, deterministic for a seed, and kept by content."""

    kind: Literal["train"]
    seed: int = 0
    """Decides the initial weights and the order of the samples."""
    epochs: PositiveInt = 1
    """Passes over the train split."""
    batch_size: PositiveInt = 32
    """Samples in one step."""
    learning_rate: PositiveFloat = 1e-3
    """Of the optimizer, at its peak."""


class FetchedCheckpoint(Kind):
    """Weights from a URI: plain path, ``file://``, ``https://``, ``http://localhost``, or anything fsspec opens."""

    kind: Literal["uri"]
    uri: str
    """Where the file is, or a local folder of safetensors files; a relative path starts at the workload file."""
    sha256: Sha256 | None = None
    """What the file must be, as 64 hexadecimal digits."""
    max_bytes: PositiveInt = 16 * 1024**3
    """A larger file is refused."""
    retries: NonNegativeInt = 4
    """How often a broken download is resumed."""


class SeededCheckpoint(Kind):
    """The random initial weights that a seed gives, as PyTorch's dynamic quantization recipe uses."""

    kind: Literal["seeded"]
    seed: int = 29592
    """Decides the weights."""


class FactorySpec(Kind):
    """The user's own ``torch.nn.Module``, made by calling ``package.module:callable`` with ``arguments``."""

    kind: Literal["factory"]
    factory: Reference
    """`module:callable`, looked for beside the workload file first."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is called with, by name."""


class TableFile(Kind):
    """A table that is cut into splits: a Parquet, CSV or JSON lines file."""

    kind: Literal["parquet", "csv", "jsonl"]
    uri: str
    """Where the file is; a relative path starts at the workload file."""
    sha256: Sha256 | None = None
    """What the file must be."""
    max_bytes: PositiveInt = 4 * 1024**3
    """A larger file is refused."""
    split: str | None = None
    """Column that says `train`, `valid`, `calibration` or `test`; without it shares are drawn."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the rows for the test split."""
    valid_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the rows for the valid split."""
    calibration: PositiveInt = 256
    """Rows of the train split to calibrate with, where no row is for that."""
    seed: int = 0
    """Decides which rows are drawn."""
