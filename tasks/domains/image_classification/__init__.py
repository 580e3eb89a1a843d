"""Image classifiers: pictures in classes, accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.domains.base import Domain, FineTunes, GivesCalibration, Quality, Trains
from tasks.domains.image_classification.sections import (
    ClassifierSpec,
    ImageFolder,
    ImageWorkload,
    RenderedCharacters,
    TorchvisionDataset,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.quantize.fine_tune import FineTuning
    from tasks.refs import CheckpointRef, DatasetRef


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
        match workload.data:
            case RenderedCharacters():
                from tasks.domains.image_classification.rendered import prepare_rendered

                return prepare_rendered(workload, workspace)
            case ImageFolder():
                from tasks.domains.image_classification.image_folder import prepare_image_folder

                return prepare_image_folder(workload, workspace)
            case TorchvisionDataset():
                from tasks.domains.image_classification.torchvision_data import prepare_torchvision

                return prepare_torchvision(workload, workspace)

    def build(self, model: ClassifierSpec, dataset: DatasetRef) -> nn.Module:
        """Build one of torchvision's models, or call the user's factory."""
        from tasks.domains.image_classification.model import build_vision

        return build_vision(model, dataset)

    def example_inputs(
        self, workload: ImageWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """The first images of the test split."""
        from tasks.domains.image_classification.images import example_images

        return example_images(dataset, store, batch_size)

    def evaluate(self, job: Job[ImageWorkload], call: Call, workspace: Workspace) -> Quality:
        """Top-1 and top-5 accuracy on the test split."""
        from tasks.domains.image_classification.evaluation import evaluate_classifier

        return evaluate_classifier(job, call, workspace)

    def calibration(
        self, job: Job[ImageWorkload], store: ArtifactStore, batch_size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """The calibration split in the order in which it is stored."""
        from tasks.domains.image_classification.images import load_images

        return ((images,) for images, _ in load_images(job.dataset, "calibration", store).batches(batch_size))

    def train(self, workload: ImageWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train with AdamW under a one-cycle learning rate."""
        from tasks.domains.image_classification.training import train_classifier

        return train_classifier(workload, dataset, workspace)

    def fine_tuning(self, job: Job[ImageWorkload], store: ArtifactStore, batch_size: int) -> FineTuning:
        """Cross-entropy on the train split, top-1 on the valid split."""
        from tasks.domains.image_classification.fine_tuning import ImageFineTuning

        return ImageFineTuning(job, store, batch_size)

    def obtain_checkpoint(self, workload: ImageWorkload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
        """Load torchvision's published weights."""
        from tasks.checkpoint.artifact import find_or_make
        from tasks.domains.image_classification.model import published_weights

        made_from, load = published_weights(workload, dataset)
        return find_or_make(workload, dataset, workspace.store, made_from, load)

    def write_resources(self, job: Job[ImageWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Size, channels, normalization and class names."""
        from tasks.domains.image_classification.resources import write_preprocessing

        return {"preprocessing": write_preprocessing(job, store, folder)}
