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


class Transforms(Section):
    """How images become tensors; ``preset = "weights"`` takes the transforms of the checkpoint's own weights."""

    preset: Literal["none", "weights"] = "none"
    resize: PositiveInt | None = None
    crop: PositiveInt | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


class RenderedCharacters(Kind):
    """Characters drawn with Pillow's own font under random affine transforms, contrast and noise; deterministic."""

    kind: Literal["rendered-characters"]
    characters: str = Field(default="ABDEFHKMRSTX", min_length=2)
    image_size: PositiveInt = 32
    train: PositiveInt = 4096
    calibration: PositiveInt = 256
    valid: PositiveInt = 512
    test: PositiveInt = 1024
    seed: int = 0


class Pictures(Kind):
    """Pictures that exist already, brought to one size and shared out among the splits."""

    image_size: PositiveInt = 224
    transforms: Transforms = Transforms()
    calibration: PositiveInt = 256
    valid_share: float = Field(default=0.1, gt=0, lt=1)
    seed: int = 0


class ImageFolder(Pictures):
    """A directory or archive with one folder of images per class, or ``train/`` and ``test/`` folders of such."""

    kind: Literal["image-folder"]
    uri: str
    sha256: Sha256 | None = None
    test_share: float = Field(default=0.2, gt=0, lt=1)
    max_corrupt_share: float = Field(default=0.01, ge=0, le=1)
    max_bytes: PositiveInt = 64 * 1024**3


class TorchvisionDataset(Pictures):
    """A torchvision data set by class name (``FashionMNIST``, ``CIFAR10``); downloaded only where asked for."""

    kind: Literal["torchvision"]
    name: str
    root: str
    download: bool = False
    max_test: PositiveInt | None = None


class TorchvisionSpec(Kind):
    """One of ``torchvision.models.quantization`` by name."""

    kind: Literal["torchvision"]
    name: str = "resnet18"
    num_classes: PositiveInt | None = None


class TorchvisionWeights(Kind):
    """torchvision's published weights by enum name, for instance ``ResNet18_Weights.IMAGENET1K_V1``."""

    kind: Literal["torchvision-weights"]
    weights: str


class Evaluate(Section):
    """``[evaluate]``: how many images are in memory at a time."""

    batch_size: PositiveInt = 32


ClassifierSpec = TorchvisionSpec | FactorySpec


class ImageWorkload(Workload):
    """An image classifier."""

    data: Annotated[RenderedCharacters | ImageFolder | TorchvisionDataset, Field(discriminator="kind")]
    model: Annotated[ClassifierSpec, Field(discriminator="kind")]
    checkpoint: Annotated[
        TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint | TorchvisionWeights, Field(discriminator="kind")
    ]
    evaluate: Evaluate = Evaluate()
