"""The TOML sections of image classifiers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from tasks.workload.base import (
    FactorySpec,
    FetchedCheckpoint,
    Kind,
    Section,
    SeededCheckpoint,
    Sha256,
    TrainedCheckpoint,
)
from tasks.workload.workload import Workload

# As torchvision.models.quantization has them.
TorchvisionModel = Literal[
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "resnet18",
    "resnet50",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
]


# As torchvision resizes pictures of Pillow's.
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "hamming", "box"]


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


class TorchvisionSpec(Kind):
    """One of ``torchvision.models.quantization`` by name."""

    kind: Literal["torchvision"]
    name: TorchvisionModel = "resnet18"
    """Its name."""
    num_classes: PositiveInt | None = None
    """Number of outputs; without it the data's."""


class TorchvisionWeights(Kind):
    """torchvision's published weights by enum name, for instance ``ResNet18_Weights.IMAGENET1K_V1``."""

    kind: Literal["torchvision-weights"]
    weights: str
    """The enum's name."""


class Evaluate(Section):
    """``[evaluate]``: how top-1 and top-5 accuracy are measured."""

    batch_size: PositiveInt = 32
    """Images in memory at a time."""


ClassifierSpec = TorchvisionSpec | FactorySpec


class ImageWorkload(Workload):
    """An image classifier."""

    data: Annotated[RenderedCharacters | ImageFolder | TorchvisionDataset, Field(discriminator="kind")]
    model: Annotated[ClassifierSpec, Field(discriminator="kind")]
    checkpoint: Annotated[
        TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint | TorchvisionWeights, Field(discriminator="kind")
    ]
    evaluate: Evaluate = Evaluate()
