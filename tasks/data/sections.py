"""The kinds of ``[data]`` sections: what there is to read; the readers beside this module read it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, PositiveInt, field_validator

from tasks.workload.base import Kind, Reference, Section, Sha256, TableFile

# As torchvision resizes pictures of Pillow's.
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "hamming", "box"]
# What a workload file may name for a model of any kind; `tasks.data.scores.METRICS` computes them.
Metric = Literal["accuracy", "top5", "f1-macro", "auroc", "loss", "mse", "mae", "perplexity", "wer"]
BATCH = "batch"  # what the axis of the rows is called in data.axes


class RandomSequence(Kind):
    """One random input sequence and one random hidden state."""

    kind: Literal["random-sequence"]
    seed: int = 29592
    """Decides the numbers."""
    length: PositiveInt = 20
    """Steps."""
    batch_size: PositiveInt = 1
    """Sequences."""


class PydocTopics(Kind):
    """Python's own language reference, which every CPython carries, split into train, valid and test by topic."""

    kind: Literal["pydoc-topics"]
    seed: int = 0
    """Decides which topics are for which split."""


class TextCorpus(Kind):
    """Text in WikiText's layout: ``train/valid/test.txt`` or ``wiki.{train,valid,test}.tokens``."""

    kind: Literal["text"]
    uri: str
    """A directory or a .zip/.tar.gz archive, a local path or a URL."""
    sha256: Sha256 | None = None
    """What an archive must be."""
    max_bytes: PositiveInt = 4 * 1024**3
    """A larger archive is refused."""


class PythonSources(Kind):
    """Comments, docstrings, error messages and code of Python's standard library, to be told apart.

    No module or package of the library has texts in two splits.
    """

    kind: Literal["python-sources"]
    train: PositiveInt = 6000
    """Texts to train on."""
    valid: PositiveInt = 400
    """Texts that training is watched by."""
    test: PositiveInt = 2000
    """Texts that quality is measured on."""
    calibration: PositiveInt = 256
    """Texts of the train split that activations are observed on."""
    seed: int = 0
    """Decides which texts are drawn."""


class TextTable(TableFile):
    """Columns of one Parquet, CSV or JSON lines file: texts, and their classes or texts that mean the same."""

    text: str
    """Column of the texts."""
    label: str | None = None
    """Column of their classes; where the model's configuration names its labels, they must be among these."""
    pair: str | None = None
    """Column of texts that mean the same as those of `text`, for retrieval."""


class Transforms(Section):
    """How images become tensors."""

    preset: Literal["none", "weights"] = "none"
    """`weights` takes the transforms of the checkpoint's own weights."""
    resize: PositiveInt | None = None
    """Length of the shorter side."""
    crop: PositiveInt | None = None
    """Side of the square that is cut from the middle."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Subtracted from each channel."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Each channel is divided by it."""
    interpolation: Interpolation = "bilinear"
    """How a picture is resized."""


class RenderedCharacters(Kind):
    """Characters drawn with Pillow's own font under random affine transforms, contrast and noise; deterministic."""

    kind: Literal["rendered-characters"]
    characters: str = Field(default="ABDEFHKMRSTX", min_length=2)
    """The classes."""
    image_size: PositiveInt = 32
    """Side in pixels."""
    train: PositiveInt = 4096
    """Images to train on."""
    calibration: PositiveInt = 256
    """Images to calibrate with."""
    valid: PositiveInt = 512
    """Images to choose an epoch by."""
    test: PositiveInt = 1024
    """Images to evaluate on."""
    seed: int = 0
    """Decides the images."""

    @field_validator("characters")
    @classmethod
    def _are_different(cls, characters: str) -> str:
        if len(set(characters)) != len(characters):
            raise ValueError(f"it repeats a character: {characters!r}; each character is a class, so name it once")
        return characters


class Pictures(Kind):
    """Pictures that exist already, brought to one size and shared out among the splits."""

    image_size: PositiveInt = 224
    """Side in pixels."""
    transforms: Transforms = Transforms()
    """How images become tensors."""
    calibration: PositiveInt = 256
    """Images of the training part to calibrate with."""
    valid_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training part to choose an epoch by."""
    seed: int = 0
    """Decides how images are shared out."""


class ImageFolder(Pictures):
    """A directory or archive with one folder of images per class, or ``train/`` and ``test/`` folders of such."""

    kind: Literal["image-folder"]
    uri: str
    """Where it is; a relative path starts at the workload file."""
    sha256: Sha256 | None = None
    """What an archive must be."""
    test_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the images for the test split, where there is no `test/`."""
    max_corrupt_share: float = Field(default=0.01, ge=0, le=1)
    """Share of unreadable images that are left out."""
    max_bytes: PositiveInt = 64 * 1024**3
    """A larger archive is refused."""


class TorchvisionDataset(Pictures):
    """A torchvision data set by class name (``FashionMNIST``, ``CIFAR10``); downloaded only where asked for."""

    kind: Literal["torchvision"]
    name: str
    """Its class."""
    root: str
    """Where its files are."""
    download: bool = False
    """Whether they may be downloaded."""
    max_test: PositiveInt | None = None
    """At most so many test images."""


class FactoryData(Kind):
    """Splits that a callable gives: a mapping from ``calibration`` and ``test`` to map-style data sets.

    A data set's items are (inputs, target).
    """

    kind: Literal["factory"]
    factory: Reference
    """`module:callable` that returns the splits."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """What it is called with, by name."""
    collate: Reference | None = None
    """`module:callable` that makes a batch of a list of items; without it items of equal shapes are stacked."""
    batch_size: PositiveInt = 32
    """Items that `collate` gets at a time."""
    files: tuple[str, ...] = ()
    """Files beside the workload file that the callable reads: when they change, the data are prepared anew."""
    axes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Names of each input's axes, "" for those of one length; without it axis 0 is `batch`."""


class TableData(TableFile):
    """Columns of one Parquet, CSV or JSON lines file."""

    features: tuple[str, ...] = Field(min_length=1)
    """Columns that become the input, float32 [N, F]."""
    target: str
    """Column that is predicted: a number, or a class where it is whole, text or a truth value."""
    standardize: bool = True
    """Whether features are standardized by the train split's mean and standard deviation."""
