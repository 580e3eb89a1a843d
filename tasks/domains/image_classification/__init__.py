"""Workload sections of the ``image-classification`` domain."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from tasks.data.sections import ImageFolder, RenderedCharacters, TorchvisionDataset
from tasks.workload.base import FactorySpec, FetchedCheckpoint, Kind, Section, SeededCheckpoint, TrainedCheckpoint
from tasks.workload.workload import Workload

TorchvisionModel = Literal[
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


class TorchvisionSpec(Kind):
    """A model from ``torchvision.models.quantization``, with one output for each class in the data."""

    kind: Literal["torchvision"]
    name: TorchvisionModel = "resnet18"
    """Name of the torchvision model."""


class TorchvisionWeights(Kind):
    """Weights that torchvision publishes."""

    kind: Literal["torchvision-weights"]
    weights: str
    """Name of the torchvision enum member, such as `ResNet18_Weights.IMAGENET1K_V1`."""


class Evaluate(Section):
    """The ``[evaluate]`` section controls how top-1 and top-5 accuracy are measured."""

    batch_size: PositiveInt = 32
    """Number of images in one call."""


ClassifierSpec = TorchvisionSpec | FactorySpec


class ImageWorkload(Workload):
    """An image classifier."""

    implementation = "tasks.domains.image_classification.domain:ImageClassification"
    provides = ("calibration", "fine-tuning")
    data: Annotated[RenderedCharacters | ImageFolder | TorchvisionDataset, Field(discriminator="kind")]
    model: Annotated[ClassifierSpec, Field(discriminator="kind")]
    checkpoint: Annotated[
        TrainedCheckpoint | FetchedCheckpoint | SeededCheckpoint | TorchvisionWeights, Field(discriminator="kind")
    ]
    evaluate: Evaluate = Evaluate()
