"""Kinds of ``[data]`` sections; other modules in this package read the data."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, PositiveFloat, PositiveInt, model_validator

from tasks.workload.base import Kind, Reference, Section, Sha256, TableFile

# torchvision's interpolation methods for Pillow images.
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "hamming", "box"]
# Metrics for models of any kind, implemented in `tasks.data.metrics.METRICS`.
Metric = Literal["accuracy", "top5", "f1-macro", "auroc", "loss", "mse", "mae", "perplexity"]
BATCH = "batch"  # name of the row axis in ``data.axes``


def _are_classes(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) == 1 or len(set(names)) < len(names):
        raise ValueError("list at least two classes, and each class once")
    return names


ClassNames = Annotated[tuple[str, ...], AfterValidator(_are_classes)]


class RandomSequence(Kind):
    """Random input sequences with random hidden states."""

    kind: Literal["random-sequence"]
    seed: int = 29592
    """Seed of the random number generator."""
    length: PositiveInt = 20
    """Number of steps in a sequence."""
    batch_size: PositiveInt = 1
    """Number of sequences in the batch."""


class PydocTopics(Kind):
    """Topics from the language reference that comes with CPython, divided into `train`, `valid` and `test` splits."""

    kind: Literal["pydoc-topics"]
    seed: int = 0
    """Seed for dividing the topics into splits."""


class TextCorpus(Kind):
    """Text in the WikiText layout: ``{train,valid,test}.txt`` or ``wiki.{train,valid,test}.tokens``."""

    kind: Literal["text"]
    uri: str
    """Path or URL of a directory, or of a `.zip` or `.tar.gz` archive."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the archive."""


class PythonSources(Kind):
    """Comments, docstrings, error messages and code from Python's standard library, for classification."""

    kind: Literal["python-sources"]
    train: PositiveInt = 6000
    """Number of training texts."""
    valid: PositiveInt = 400
    """Number of texts for validation."""
    test: PositiveInt = 2000
    """Number of texts for evaluation."""
    calibration: PositiveInt = 256
    """Number of texts for calibration, in addition to the training texts."""
    seed: int = 0
    """Seed for sampling the texts."""


class TextTable(TableFile):
    """Texts from a Parquet, CSV or JSON Lines file, with classes or paired texts."""

    text: str
    """Name of the text column."""
    label: str | None = None
    """Name of the class column; if the model's configuration lists labels, each class must be one of these labels."""
    pair: str | None = None
    """Name of the column with paired texts for retrieval; the two texts in each row have the same meaning."""


class Transforms(Section):
    """Transforms that turn images into tensors."""

    resize: PositiveInt | None = None
    """Length, in pixels, of an image's shorter side after resizing; by default, `image_size`."""
    mean: tuple[float, ...] = Field(default=(0.485, 0.456, 0.406), min_length=3, max_length=3)
    """Mean of each channel, subtracted from the pixel values."""
    std: tuple[PositiveFloat, ...] = Field(default=(0.229, 0.224, 0.225), min_length=3, max_length=3)
    """Standard deviation of each channel, by which the pixel values are divided."""
    interpolation: Interpolation = "bilinear"
    """Interpolation method for resizing."""


class RenderedCharacters(Kind):
    """Characters in Pillow's built-in font, drawn with random affine transforms, contrast and noise."""

    kind: Literal["rendered-characters"]
    characters: str = Field(default="ABDEFHKMRSTX", min_length=2)
    """Characters to draw; each character is a class."""
    image_size: PositiveInt = 32
    """Height and width of an image in pixels."""
    train: PositiveInt = 4096
    """Number of training images."""
    calibration: PositiveInt = 256
    """Number of images for calibration."""
    valid: PositiveInt = 512
    """Number of images for validation."""
    test: PositiveInt = 1024
    """Number of images for evaluation."""
    seed: int = 0
    """Seed for drawing the images; the same seed produces the same images."""


class Pictures(Kind):
    """Existing images, resized to a common size and divided into splits."""

    image_size: PositiveInt = 224
    """Height and width of an image in pixels, after resizing and a centre crop."""
    transforms: Transforms = Transforms()
    """Transforms that turn images into tensors."""
    calibration: PositiveInt = 256
    """Number of training images to set aside for calibration."""
    valid_share: float = Field(default=0.1, gt=0, lt=1)
    """Fraction of the training images to set aside for validation."""
    seed: int = 0
    """Seed for dividing the images into splits."""

    @model_validator(mode="after")
    def _images_are_not_smaller_than_their_crop(self) -> Self:
        if (self.transforms.resize or self.image_size) < self.image_size:
            raise ValueError(f"transforms.resize is less than image_size; set it to {self.image_size} or more")
        return self


class ImageFolder(Pictures):
    """A directory or archive with one image folder per class, at the top level or in ``train/`` and ``test/``."""

    kind: Literal["image-folder"]
    uri: str
    """Path (relative to the workload file's folder) or URL of the directory or archive."""
    classes: ClassNames = ()
    """Names of the class folders in the order of the model's outputs; by default, all class folders in sorted order."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the archive."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Fraction of the training images to use as the test split if the `test/` folder is missing."""


class TorchvisionDataset(Pictures):
    """A torchvision data set, such as ``FashionMNIST`` or ``CIFAR10``."""

    kind: Literal["torchvision"]
    name: str
    """Name of the data set's class in `torchvision.datasets`."""
    root: str
    """Folder that contains the data set's files."""
    download: bool = False
    """Whether to download missing files."""


class FactoryData(Kind):
    """Splits from a callable that returns a mapping of map-style data sets, whose items are (inputs, target) pairs."""

    kind: Literal["factory"]
    factory: Reference
    """`module:callable` that returns the splits."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments for the callable."""
    collate: Reference | None = None
    """`module:callable` that combines a list of items into a batch; by default, items of equal shape are stacked."""
    batch_size: PositiveInt = 32
    """Number of items that `collate` receives in one call."""
    files: tuple[str, ...] = ()
    """Paths, relative to the workload file's folder, of files that the callable reads; a changed file is read again."""
    axes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Axis names for each input, with `""` for an axis of constant length; by default, axis 0 is `batch`."""


class TableData(TableFile):
    """Features and a target from a Parquet, CSV or JSON Lines file."""

    features: tuple[str, ...] = Field(min_length=1)
    """Names of the columns that form the float32 input of shape `[N, F]`."""
    target: str
    """Name of the column to predict. Floats and decimals are numeric targets; all other values are classes."""
    classes: ClassNames = ()
    """Values of the target column in the order of the outputs; by default, integers, or texts in sorted order."""
    standardize: bool = True
    """Whether to standardize features with the mean and standard deviation of the `train` split."""
