"""``[data]``: where a workload's samples come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from tasks.workload.base import Section, Sha256


class PydocTopics(Section):
    """Python's own language reference, which every CPython carries, split into train, valid and test by topic."""

    kind: Literal["pydoc-topics"]
    seed: int = 0


class TextCorpus(Section):
    """Text in WikiText's layout: ``train/valid/test.txt`` or ``wiki.{train,valid,test}.tokens``.

    ``uri`` is a directory or a .zip/.tar.gz archive, a local path or a URL.
    """

    kind: Literal["text"]
    uri: str
    sha256: Sha256 | None = None
    max_bytes: PositiveInt = 4 * 1024**3


class RandomSequence(Section):
    """One random input sequence and one random hidden state, as in PyTorch's dynamic quantization recipe."""

    kind: Literal["random-sequence"]
    seed: int = 29592
    length: PositiveInt = 20
    batch_size: PositiveInt = 1


class Transforms(Section):
    """How images become tensors; ``preset = "weights"`` takes the transforms of the checkpoint's own weights."""

    preset: Literal["none", "weights"] = "none"
    resize: PositiveInt | None = None
    crop: PositiveInt | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


class RenderedCharacters(Section):
    """Characters drawn with Pillow's own font under random affine transforms, contrast and noise; deterministic."""

    kind: Literal["rendered-characters"]
    characters: str = Field(default="ABDEFHKMRSTX", min_length=2)
    image_size: PositiveInt = 32
    train: PositiveInt = 4096
    calibration: PositiveInt = 256
    valid: PositiveInt = 512
    test: PositiveInt = 1024
    seed: int = 0


class ImageFolder(Section):
    """A directory or archive with one folder of images per class, or ``train/`` and ``test/`` folders of such."""

    kind: Literal["image-folder"]
    uri: str
    sha256: Sha256 | None = None
    image_size: PositiveInt = 224
    transforms: Transforms = Transforms()
    calibration: PositiveInt = 256
    valid_share: float = Field(default=0.1, gt=0, lt=1)
    test_share: float = Field(default=0.2, gt=0, lt=1)
    max_corrupt_share: float = Field(default=0.01, ge=0, le=1)
    max_bytes: PositiveInt = 64 * 1024**3
    seed: int = 0


class TorchvisionDataset(Section):
    """A torchvision data set by class name (``FashionMNIST``, ``CIFAR10``); downloaded only where asked for."""

    kind: Literal["torchvision"]
    name: str
    root: str
    download: bool = False
    image_size: PositiveInt = 224
    transforms: Transforms = Transforms()
    calibration: PositiveInt = 256
    valid_share: float = Field(default=0.1, gt=0, lt=1)
    max_test: PositiveInt | None = None
    seed: int = 0


Data = Annotated[
    PydocTopics | TextCorpus | RandomSequence | RenderedCharacters | ImageFolder | TorchvisionDataset,
    Field(discriminator="kind"),
]
