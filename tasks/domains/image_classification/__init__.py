"""Image classifiers: pictures in classes, accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from tasks.domains.base import Domain, FineTunes, GivesCalibration, Proposal, Quality, Trains
from tasks.domains.image_classification.sections import (
    ClassifierSpec,
    ImageFolder,
    ImageWorkload,
    RenderedCharacters,
    TorchvisionDataset,
    TorchvisionWeights,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.quantize.fine_tune import FineTuning
    from tasks.refs import CheckpointRef, DatasetRef

_PREPROCESSING = "preprocessing.json"
_AXES: Mapping[str, Mapping[int, str]] = {"images": {0: "batch"}}


class ImageClassification(
    Domain[ImageWorkload, ClassifierSpec],
    GivesCalibration[ImageWorkload],
    Trains[ImageWorkload],
    FineTunes[ImageWorkload],
):
    """The domain ``image-classification``."""

    extra = "images"
    distributions = ("torchvision", "pillow")
    workload = ImageWorkload
    outputs = ("logits",)

    def prepare(self, workload: ImageWorkload, workspace: Workspace) -> DatasetRef:
        """Draw, decode or load the images."""
        match workload.data:
            case RenderedCharacters():
                from tasks.domains.image_classification.rendered import prepare_rendered as prepare
            case ImageFolder():
                from tasks.domains.image_classification.image_folder import prepare_image_folder as prepare
            case TorchvisionDataset():
                from tasks.domains.image_classification.torchvision_data import prepare_torchvision as prepare
        return prepare(workload, workspace)

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

    def axes(self, workload: ImageWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of images."""
        return _AXES

    def evaluate(self, job: Job[ImageWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Top-1 and top-5 accuracy on the test split."""
        from tasks.domains.image_classification.evaluation import classify
        from tasks.domains.image_classification.images import load_images

        split = load_images(job.dataset, "test", workspace.store)
        batch_size = 1 if apart else job.workload.evaluate.batch_size
        metrics, samples = classify(call, split, batch_size, workspace.progress)
        return Quality(
            "top1",
            metrics["top1"],
            higher_is_better=True,
            metrics=metrics,
            samples=samples,
            count=len(split),
            mode="rows apart" if apart else "plain",
            contributions="right-or-wrong",
        )

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
        from tasks.checkpoint import find_or_make
        from tasks.domains.image_classification.model import load_weights, published

        weights = published(cast(TorchvisionWeights, workload.checkpoint).weights)
        model = workload.model.model_dump(mode="json")
        made_from = {"model": model, "weights": weights.url, "classes": dataset.classes}
        return find_or_make(workload, dataset, workspace, made_from, lambda: load_weights(weights))

    def propose(self, workload: ImageWorkload, workspace: Workspace) -> Proposal:
        """Choose the size of the pictures, how many of them calibrate, and how many outputs the model has."""
        from tasks.domains.image_classification.proposal import propose_keys

        return propose_keys(workload, workspace)

    def write_resources(self, job: Job[ImageWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """``preprocessing.json``: size, channels, transforms, normalization and class names."""
        from tasks.domains.image_classification.images import read_description
        from tasks.domains.image_classification.transforms import preprocessing

        description = read_description(job.dataset, store)
        channels, height, width = job.dataset.sample_shape
        drawn = isinstance(job.workload.data, RenderedCharacters)
        document = {
            "channels": channels,
            "order": "RGB" if channels == 3 else "as trained",
            "height": height,
            "width": width,
            "transforms": None if drawn else asdict(preprocessing(job.workload)),
            "normalize": "(value / 255 - mean) / std, per channel, as float32 [batch, channels, height, width]",
            "mean": description.mean,
            "std": description.std,
            "classes": description.classes,
        }
        (folder / _PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
        return {"preprocessing": _PREPROCESSING}
