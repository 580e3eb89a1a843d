"""Data sets from ``torchvision.datasets``, selected by class name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torchvision
from PIL import Image
from torchvision.datasets import VisionDataset

from storage.digest import digest_of
from storage.errors import ConfigurationError, did_you_mean
from storage.transfer import downloading
from tasks.data.picture_sets import Notes, Part, Quotas, prepare_pictures, training_quotas
from tasks.data.pictures import UnreadableError, readable
from tasks.data.sections import TorchvisionDataset
from tasks.environment.libraries import LibraryError, reported_as
from tasks.environment.sources import code_digest
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef

# Attributes in which torchvision's data sets store labels; reading them from samples would decode the images.
_LABELS = ("targets", "labels", "_labels")


def prepare_torchvision(data: TorchvisionDataset, workspace: Workspace) -> DatasetRef:
    """Resize and split a labelled image set; its held-out part becomes the test split."""
    train, test = _open(data)

    def open_parts() -> tuple[Sequence[str], Sequence[Part], Notes]:
        quotas = training_quotas(len(train), {"valid": data.valid_share}, data.calibration)
        parts = [_part(test, {"test": None}), _part(train, quotas)]
        count = 1 + max(label for part in parts for label in part.labels)
        names = [str(name) for name in getattr(train, "classes", ())]
        return names if len(names) >= count else [str(label) for label in range(count)], parts, ()

    content = [digest_of({"labels": _labels(part)}) for part in (train, test)]
    return prepare_pictures(data, {"content": content, "code": code_digest(__name__)}, open_parts, workspace)


def _open(data: TorchvisionDataset) -> tuple[VisionDataset, VisionDataset]:
    """Return the data set's parts for training and testing: by `train`, or the splits train and test (or val)."""
    kind = getattr(torchvision.datasets, data.name, None)
    parameters = inspect.signature(kind).parameters if inspect.isclass(kind) else {}
    if kind is None or not parameters.keys() & {"train", "split"}:
        suggestion = did_you_mean(data.name, torchvision.datasets.__all__)
        raise ConfigurationError(
            f'torchvision does not include a data set "{data.name}" with a training and a test part{suggestion}.',
            hint='Correct data.name, or use data.kind = "image-folder" with one folder of images per class.',
        )

    def make(**arguments: object) -> VisionDataset:
        arguments |= {"root": data.root} | ({"download": data.download} if "download" in parameters else {})
        failed = f'torchvision\'s data set "{data.name}" cannot be read from {data.root}'
        hint = "Put the data set's files into data.root, or set data.download = true and connect to a network."
        with reported_as(failed, hint), downloading():
            dataset: VisionDataset = kind(**arguments)
        return dataset

    if "train" in parameters:
        return make(train=True), make(train=False)
    train = make(split="train")
    try:
        return train, make(split="test")
    except LibraryError:
        return train, make(split="val")  # ImageNet


def _part(dataset: VisionDataset, quotas: Quotas) -> Part:
    name, labels = type(dataset).__name__, _labels(dataset)

    def read(index: int) -> Image.Image:
        with readable():
            image = dataset[index][0]
        if not isinstance(image, Image.Image):
            raise UnreadableError(f"expected an image, got {type(image).__name__}")
        return image

    return Part([f"{name}[{index}]" for index in range(len(labels))], labels, read, quotas)


def _labels(dataset: VisionDataset) -> list[int]:
    stored = next((getattr(dataset, name) for name in _LABELS if hasattr(dataset, name)), ())
    try:
        labels = list(map(int, stored))
    except (TypeError, ValueError):
        labels = []
    if not labels or min(labels) < 0:
        raise ConfigurationError(
            f'torchvision\'s data set "{type(dataset).__name__}" does not have one class per image.',
            hint="Use a classification data set.",
        )
    return labels
