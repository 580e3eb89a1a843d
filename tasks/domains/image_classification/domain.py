"""The ``image-classification`` domain: image data sets, accuracy metrics, and training with randomly shifted images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.evaluation import Quality, check_labels, checked_outputs, evaluate_batches
from tasks.data.metrics import METRICS
from tasks.data.outputs import Call, tensors_of
from tasks.data.picture_sets import prepare_image_folder
from tasks.data.pictures import prepare_rendered, preprocessing
from tasks.data.samples import load_samples, read_description
from tasks.data.scores import Score
from tasks.data.sections import ImageFolder, RenderedCharacters
from tasks.data.torchvision_data import prepare_torchvision
from tasks.data.training import FineTuning, Training, train
from tasks.data.weights import load_checkpoint
from tasks.domains.base import Axes, Domain, Weights, write_preprocessing
from tasks.domains.image_classification import ClassifierSpec, ImageWorkload, TorchvisionWeights
from tasks.domains.image_classification.network import build_vision, load_weights, propose_keys, published
from tasks.environment.user_code import in_its_own_words
from tasks.values.job import Job, Workspace
from tasks.values.refs import DatasetRef
from tasks.values.results import Proposal
from tasks.workload.base import TrainedCheckpoint

_WEIGHT_DECAY = 0.05
_LABEL_SMOOTHING = 0.05
_SHORTEST_CYCLE = 5


class ImageClassification(Domain[ImageWorkload, ClassifierSpec]):
    """The domain ``image-classification``."""

    outputs = ("logits",)
    open_axes: ClassVar[Axes] = {"images": {0: "batch"}}

    def prepare(self, workload: ImageWorkload, workspace: Workspace) -> DatasetRef:
        """Render, decode or load the images."""
        data = workload.data
        if isinstance(data, RenderedCharacters):
            return prepare_rendered(data, workspace)
        if isinstance(data, ImageFolder):
            return prepare_image_folder(data, workspace)
        return prepare_torchvision(data, workspace)

    def build(self, model: ClassifierSpec, dataset: DatasetRef) -> nn.Module:
        """Build a torchvision model, or call the user's factory."""
        return build_vision(model, dataset)

    def check(self, job: Job[ImageWorkload], workspace: Workspace) -> None:
        """Compare the classes in the data with the float model's outputs for one image."""
        model = self.build(job.workload.model, job.dataset)
        load_checkpoint(model, job.checkpoint, workspace.store)
        images = self.example_inputs(job.workload, job.dataset, workspace.store, 1)["images"]
        with torch.inference_mode():
            with in_its_own_words(f"The model's forward failed on images {list(images.shape)}", "Fix forward."):
                result = model(images)
            is_folder = isinstance(job.workload.data, ImageFolder)
            check_labels(
                checked_outputs(result, 1),
                read_description(job.dataset, workspace.store),
                named=is_folder and job.workload.brings_weights,
            )

    def metric(self, workload: ImageWorkload) -> Score:
        """Return top-1 accuracy."""
        return METRICS["top1"]

    def evaluate(self, job: Job[ImageWorkload], call: Call, workspace: Workspace, *, singly: bool = False) -> Quality:
        """Compute top-1 and top-5 accuracy on the test split."""
        split = load_samples(job.dataset, "test", workspace.store)
        return evaluate_batches(
            call,
            split.batches(1 if singly else job.workload.evaluate.batch_size),
            self.metric(job.workload),
            total=len(split),
            singly=singly,
            also={"top5": "top5"},
            classes=int(split.target.max()) + 1,
            progress=workspace.progress,
        )

    def train(self, workload: ImageWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train with AdamW and a one-cycle learning rate (Smith and Topin, "Super-Convergence", 2018)."""
        settings = cast("TrainedCheckpoint", workload.checkpoint)
        steps = math.ceil(dataset.splits["train"] / settings.batch_size)

        def make(device: torch.device) -> Training:
            generator = torch.Generator().manual_seed(settings.seed)
            model = build_vision(workload.model, dataset).to(device)
            optimizer = torch.optim.AdamW(
                model.parameters(), lr=settings.learning_rate, weight_decay=_WEIGHT_DECAY, fused=True
            )

            def epoch() -> Iterator[tuple[float, Tensor]]:
                batches = training_batches(dataset, workspace.store, settings.batch_size, generator)
                for step, ((images,), labels) in enumerate(batches, start=1):
                    logits = model(images.to(device))
                    yield step / steps, cross_entropy(logits, labels.to(device), label_smoothing=_LABEL_SMOOTHING)

            schedule = one_cycle(optimizer, settings.learning_rate, settings.epochs * steps)
            return Training(model, optimizer, schedule, epoch)

        return train(make, settings, workload.name, workspace.progress)

    def fine_tuning(self, job: Job[ImageWorkload], store: ArtifactStore, batch_size: int) -> FineTuning:
        """Return shuffled batches, a cross-entropy loss, and top-1 accuracy (from 0 to 1) as the validation score."""

        def validate(model: nn.Module, device: torch.device) -> tuple[float, float]:
            split = load_samples(job.dataset, "valid", store)
            correct, loss = 0.0, 0.0
            for batch in split.batches(batch_size):
                assert batch.target is not None
                logits, expected = tensors_of(model(batch.inputs[0].to(device)))[0], batch.target.to(device)
                correct += float((logits.argmax(1) == expected).sum())
                loss += float(cross_entropy(logits, expected, reduction="sum"))
            return correct / len(split), loss / len(split)

        return FineTuning(
            steps_per_epoch=math.ceil(job.dataset.splits["train"] / batch_size),
            batches=partial(training_batches, job.dataset, store, batch_size),
            loss=lambda outputs, target: cross_entropy(tensors_of(outputs)[0], target),
            validate=validate,
        )

    def weights(self, workload: ImageWorkload, dataset: DatasetRef) -> Weights:
        """Return values that identify torchvision's published weights, and a function that loads the weights."""
        weights = published(cast("TorchvisionWeights", workload.checkpoint).weights)
        model = workload.model.model_dump(mode="json")
        made_from = {"model": model, "weights": weights.url, "classes": dataset.classes}
        return made_from, lambda: load_weights(weights)

    def propose(self, workload: ImageWorkload, workspace: Workspace) -> Proposal:
        """Choose the image size, the number of calibration images, and the number of model outputs."""
        return propose_keys(workload, workspace)

    def write_resources(self, job: Job[ImageWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write ``preprocessing.json`` with the image size, channels, transforms, normalization and class names."""
        description, data = read_description(job.dataset, store), job.workload.data
        channels, height, width = job.dataset.sample_shape
        document = {
            "channels": channels,
            "order": "RGB",
            "height": height,
            "width": width,
            "transforms": None if isinstance(data, RenderedCharacters) else asdict(preprocessing(data)),
            "normalize": "(value / 255 - mean) / std, per channel, as float32 [batch, channels, height, width]",
            "mean": description.mean,
            "std": description.std,
            "classes": description.classes,
        }
        return write_preprocessing(document, folder)


def training_batches(
    dataset: DatasetRef, store: ArtifactStore, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Yield one epoch of shuffled batches from the train split; shift each image by at most 1/16 of its side.

    A final batch of one sample is dropped, because batch normalization needs several samples.
    """
    split = load_samples(dataset, "train", store)
    if min(len(split), batch_size) < 2:
        raise InputError(
            f"Training needs batches of at least two images, but batch_size is {batch_size} and the number of training "
            f"images is {len(split)}.",
            hint="Set batch_size to 2 or more, or provide more training images.",
        )
    order = torch.randperm(len(split), generator=generator)
    for batch in split.batches(batch_size, order):
        (images,), labels, count = batch.inputs, batch.target, batch.size
        if labels is not None and count > 1:
            rows = _shifted_positions(count, images.shape[2], generator).view(count, 1, -1, 1).expand(images.shape)
            columns = _shifted_positions(count, images.shape[3], generator).view(count, 1, 1, -1).expand(images.shape)
            yield (images.gather(2, rows).gather(3, columns),), labels


def _shifted_positions(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Return source positions, int64 [count, side], for `count` random shifts along an axis; repeat edge pixels."""
    reach = side // 16
    shift = torch.randint(-reach, reach + 1, (count, 1), generator=generator)
    return (torch.arange(side) + shift).clamp_(0, side - 1)


def one_cycle(
    optimizer: torch.optim.Optimizer, learning_rate: float, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    """Return a schedule that rises to `learning_rate` over a quarter of the steps and then falls to nearly zero."""
    # With four steps in total, the learning rate would rise for zero steps, and OneCycleLR would divide by zero.
    total = max(_SHORTEST_CYCLE, steps + 1)
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=total, pct_start=0.25)
