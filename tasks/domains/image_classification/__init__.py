"""Image classifiers: pictures in classes, accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, PositiveInt

from tasks.data.sections import ImageFolder, RenderedCharacters, TorchvisionDataset
from tasks.domains.base import Domain, FineTunes, GivesCalibration, Proposal, Trains, Weights
from tasks.workload.base import FactorySpec, FetchedCheckpoint, Kind, Section, SeededCheckpoint, TrainedCheckpoint
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.data.metrics import Quality
    from tasks.data.tuning import FineTuning
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef

_AXES: Mapping[str, Mapping[int, str]] = {"images": {0: "batch"}}
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


class ImageClassification(
    Domain[ImageWorkload, ClassifierSpec],
    GivesCalibration[ImageWorkload],
    Trains[ImageWorkload],
    FineTunes[ImageWorkload],
):
    """The domain ``image-classification``."""

    workload = ImageWorkload
    outputs = ("logits",)

    def prepare(self, workload: ImageWorkload, workspace: Workspace) -> DatasetRef:
        """Draw, decode or load the images."""
        data = workload.data
        if isinstance(data, RenderedCharacters):
            from tasks.data.rendered import prepare_rendered

            return prepare_rendered(data, workspace)
        from tasks.domains.image_classification.network import preprocessing

        geometry = preprocessing(workload, data)
        if isinstance(data, ImageFolder):
            from tasks.data.image_folder import prepare_image_folder

            return prepare_image_folder(data, geometry, workspace)
        from tasks.data.torchvision_data import prepare_torchvision

        return prepare_torchvision(data, geometry, workspace)

    def build(self, model: ClassifierSpec, dataset: DatasetRef) -> nn.Module:
        """Build one of torchvision's models, or call the user's factory."""
        from tasks.domains.image_classification.network import build_vision

        return build_vision(model, dataset)

    def axes(self, workload: ImageWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of images."""
        return _AXES

    def evaluate(self, job: Job[ImageWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Top-1 and top-5 accuracy on the test split."""
        from tasks.data.evaluation import evaluate_batches, named
        from tasks.data.splits import load_samples

        split = load_samples(job.dataset, "test", workspace.store)
        return evaluate_batches(
            call,
            split.batches(1 if apart else job.workload.evaluate.batch_size),
            named("top1"),
            total=len(split),
            apart=apart,
            also={"top5": "top5-of-any"},
            classes=int(split.target.max()) + 1,
            progress=workspace.progress,
            unit="images",
        )

    def train(self, workload: ImageWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train with AdamW under a one-cycle learning rate."""
        from tasks.domains.image_classification.training import train_classifier

        return train_classifier(workload, dataset, workspace)

    def fine_tuning(self, job: Job[ImageWorkload], store: ArtifactStore, batch_size: int) -> FineTuning:
        """Cross-entropy on the train split, top-1 on the valid split."""
        from tasks.domains.image_classification.fine_tuning import ImageFineTuning

        return ImageFineTuning(job, store, batch_size)

    def weights(self, workload: ImageWorkload, dataset: DatasetRef) -> Weights:
        """Find torchvision's published weights."""
        from tasks.domains.image_classification.network import load_weights, published

        weights = published(cast(TorchvisionWeights, workload.checkpoint).weights)
        model = workload.model.model_dump(mode="json")
        made_from = {"model": model, "weights": weights.url, "classes": dataset.classes}
        return Weights(made_from, lambda: load_weights(weights))

    def propose(self, workload: ImageWorkload, workspace: Workspace) -> Proposal:
        """Choose the size of the pictures, how many of them calibrate, and how many outputs the model has."""
        from tasks.domains.image_classification.input_size import propose_keys

        return propose_keys(workload, workspace)

    def write_resources(self, job: Job[ImageWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """``preprocessing.json``: size, channels, transforms, normalization and class names."""
        from tasks.data.samples import read_description
        from tasks.domains.image_classification.network import preprocessing

        description, data = read_description(job.dataset, store), job.workload.data
        channels, height, width = job.dataset.sample_shape
        document = {
            "channels": channels,
            "order": "RGB" if channels == 3 else "as trained",
            "height": height,
            "width": width,
            "transforms": None if isinstance(data, RenderedCharacters) else asdict(preprocessing(job.workload, data)),
            "normalize": "(value / 255 - mean) / std, per channel, as float32 [batch, channels, height, width]",
            "mean": description.mean,
            "std": description.std,
            "classes": description.classes,
        }
        return self.write_preprocessing(document, folder)
