"""The kinds of ``[data]`` sections; the other modules of this package read the data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, PositiveInt, field_validator

from tasks.workload.base import Kind, Reference, Section, Sha256, TableFile

# torchvision's interpolations for Pillow images.
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "hamming", "box"]
# Metrics for models of any kind; `tasks.data.metrics.METRICS` computes them.
Metric = Literal["accuracy", "top5", "f1-macro", "auroc", "loss", "mse", "mae", "perplexity", "wer"]
BATCH = "batch"  # name of the axis of the rows in data.axes


class RandomSequence(Kind):
    """One random input sequence and one random hidden state."""

    kind: Literal["random-sequence"]
    seed: int = 29592
    """Seed of the random numbers."""
    length: PositiveInt = 20
    """Number of steps."""
    batch_size: PositiveInt = 1
    """Number of sequences in the batch."""


class PydocTopics(Kind):
    """The language reference that CPython includes, split by topic into train, valid and test."""

    kind: Literal["pydoc-topics"]
    seed: int = 0
    """Seed of the split."""


class TextCorpus(Kind):
    """Text in WikiText's layout: ``train/valid/test.txt`` or ``wiki.{train,valid,test}.tokens``."""

    kind: Literal["text"]
    uri: str
    """Local path or URL of a directory or a .zip/.tar.gz archive."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of an archive."""
    max_bytes: PositiveInt = 4 * 1024**3
    """Maximum size of an archive; a larger archive is refused."""


class PythonSources(Kind):
    """Comments, docstrings, error messages and code of Python's standard library, for classification.

    All texts of a module or package of the library are in one split.
    """

    kind: Literal["python-sources"]
    train: PositiveInt = 6000
    """Number of training texts."""
    valid: PositiveInt = 400
    """Number of texts for validation."""
    test: PositiveInt = 2000
    """Number of texts for evaluation."""
    calibration: PositiveInt = 256
    """Number of texts for calibration, in addition to `train`."""
    seed: int = 0
    """Seed of the sampling."""


class TextTable(TableFile):
    """Columns of a Parquet, CSV or JSON lines file that contain texts, and classes or pairs."""

    text: str
    """Column of the texts."""
    label: str | None = None
    """Column of the classes; if the model's configuration names labels, the classes must be among them."""
    pair: str | None = None
    """Column of texts with the same meaning as the texts of `text`, for retrieval."""


class Transforms(Section):
    """Transforms that turn images into tensors."""

    preset: Literal["none", "weights"] = "none"
    """`weights` uses the transforms that are published with the checkpoint's weights."""
    resize: PositiveInt | None = None
    """Length of the shorter side after resizing, in pixels."""
    crop: PositiveInt | None = None
    """Side of the square that is cropped from the middle, in pixels."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, which is subtracted."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel, by which values are divided."""
    interpolation: Interpolation = "bilinear"
    """Interpolation for resizing."""


class RenderedCharacters(Kind):
    """Characters drawn in Pillow's own font with random affine transforms, contrast and noise."""

    kind: Literal["rendered-characters"]
    characters: str = Field(default="ABDEFHKMRSTX", min_length=2)
    """Characters to draw; each character is a class."""
    image_size: PositiveInt = 32
    """Side of an image, in pixels."""
    train: PositiveInt = 4096
    """Number of training images."""
    calibration: PositiveInt = 256
    """Number of images for calibration."""
    valid: PositiveInt = 512
    """Number of images for validation."""
    test: PositiveInt = 1024
    """Number of images for evaluation."""
    seed: int = 0
    """Seed of the images; the same seed gives the same images."""

    @field_validator("characters")
    @classmethod
    def _are_different(cls, characters: str) -> str:
        if len(set(characters)) != len(characters):
            raise ValueError(f"{characters!r} repeats a character: use each character once, because it is a class")
        return characters


class Pictures(Kind):
    """Existing pictures, resized to one size and divided into splits."""

    image_size: PositiveInt = 224
    """Side of an image, in pixels."""
    transforms: Transforms = Transforms()
    """Transforms that turn images into tensors."""
    calibration: PositiveInt = 256
    """Number of training images to set aside for calibration."""
    valid_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training images to set aside for validation."""
    seed: int = 0
    """Seed of the split."""


class ImageFolder(Pictures):
    """A directory or archive with one folder of images per class, or with such folders in ``train/`` and ``test/``."""

    kind: Literal["image-folder"]
    uri: str
    """Path or URL of the directory or archive; a relative path starts at the workload file."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of an archive."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the images for the test split, if there is no folder `test/`."""
    max_corrupt_share: float = Field(default=0.01, ge=0, le=1)
    """Maximum share of unreadable images, which are skipped."""
    max_bytes: PositiveInt = 64 * 1024**3
    """Maximum size of an archive; a larger archive is refused."""


class TorchvisionDataset(Pictures):
    """A data set of torchvision, such as ``FashionMNIST`` or ``CIFAR10``."""

    kind: Literal["torchvision"]
    name: str
    """Name of the data set's class."""
    root: str
    """Folder of the data set's files."""
    download: bool = False
    """Whether to download missing files."""
    max_test: PositiveInt | None = None
    """Maximum number of test images."""


class FactoryData(Kind):
    """Splits from a callable: it returns a mapping of ``calibration`` and ``test`` to map-style data sets.

    The items of a data set are pairs (inputs, target).
    """

    kind: Literal["factory"]
    factory: Reference
    """`module:callable` that returns the splits."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the callable."""
    collate: Reference | None = None
    """`module:callable` that makes a batch from a list of items; by default, items of equal shapes are stacked."""
    batch_size: PositiveInt = 32
    """Number of items that `collate` receives."""
    files: tuple[str, ...] = ()
    """Files that the callable reads, relative to the workload file; if one changes, the data are prepared again."""
    axes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Names of each input's axes, "" for an axis of constant length; by default, axis 0 is `batch`."""


class TableData(TableFile):
    """Columns of a Parquet, CSV or JSON lines file."""

    features: tuple[str, ...] = Field(min_length=1)
    """Columns that become the input, float32 [N, F]."""
    target: str
    """Column to predict: a class if its values are integers, texts or booleans; otherwise a number."""
    standardize: bool = True
    """Whether to standardize features with the mean and standard deviation of the train split."""
