"""Data sets from ``torchvision.datasets``, selected by class name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torchvision
from PIL import Image
from torchvision.datasets import VisionDataset

from storage.digest import digest_of
from storage.errors import ConfigurationError, InputError, did_you_mean, is_transient
from storage.transfer import downloading
from tasks.data.picture_sets import Notes, Part, Quotas, prepare_pictures, training_quotas
from tasks.data.pictures import Preprocessing, Split, UnreadableError
from tasks.data.sections import TorchvisionDataset
from tasks.job import Workspace
from tasks.refs import DatasetRef
from tasks.sources import code_digest

# Attributes in which torchvision's data sets store labels; reading them from samples would decode the images.
_LABELS = ("targets", "labels", "_labels", "y")
_HELD_OUT_SPLITS = ("test", "val", "valid")


def prepare_torchvision(data: TorchvisionDataset, geometry: Preprocessing, workspace: Workspace) -> DatasetRef:
    """Resize and split a labelled image set from torchvision.

    The data set's held-out part (``train=False``, or the ``test``, ``val`` or ``valid`` split) becomes the test split.
    If there is no held-out part, the fraction ``valid_share`` of all samples becomes the test split. A further held-out
    part becomes the valid split; otherwise, validation samples come from the training part, as calibration samples do.
    """
    train, test, valid = _open(data)

    def open_parts() -> tuple[Sequence[str], Sequence[Part], Notes]:
        held_out: dict[Split, VisionDataset | None] = {"test": test, "valid": valid}
        missing = [split for split, part in held_out.items() if part is None]
        quotas = training_quotas(len(train), dict.fromkeys(missing, data.valid_share), data.calibration)
        parts = [_part(part, {split: None}) for split, part in held_out.items() if part is not None]
        parts.append(_part(train, quotas))
        count = 1 + max(label for part in parts for label in part.labels)
        names = [str(name) for name in getattr(train, "classes", ())]
        return names if len(names) >= count else [str(label) for label in range(count)], parts, ()

    content = [digest_of({"labels": _labels(part)}) for part in (train, test, valid) if part is not None]
    return prepare_pictures(data, geometry, {"content": content, "code": code_digest(__name__)}, open_parts, workspace)


def _open(data: TorchvisionDataset) -> tuple[VisionDataset, VisionDataset | None, VisionDataset | None]:
    """Return the data set's parts for training, testing and validation; a missing part is ``None``."""
    kind = getattr(torchvision.datasets, data.name, None)
    if not (inspect.isclass(kind) and issubclass(kind, VisionDataset)):
        suggestion = did_you_mean(data.name, torchvision.datasets.__all__)
        raise ConfigurationError(
            f'torchvision does not include the data set "{data.name}"{suggestion}.', hint="Correct data.name."
        )
    parameters = inspect.signature(kind).parameters
    if data.download and "download" not in parameters:
        raise ConfigurationError(
            f'torchvision cannot download the data set "{data.name}".',
            hint="Put the data set's files into data.root, and set data.download = false.",
        )
    general = {"root": data.root, "download": data.download}
    make = partial(_make, kind, data, **{name: general[name] for name in general.keys() & parameters})
    if "train" in parameters:
        return make(train=True), make(train=False), None
    if "split" not in parameters:
        return make(), None, None
    train, held_out = make(split="train"), []
    for split in _HELD_OUT_SPLITS:
        with suppress(ConfigurationError):  # the data set uses another name for the held-out split
            held_out.append(make(split=split))
    if not held_out:
        raise ConfigurationError(
            f'torchvision\'s data set "{data.name}" does not have a split named {" or ".join(_HELD_OUT_SPLITS)}.',
            hint="Use another data set.",
        )
    return train, held_out[0], held_out[1] if len(held_out) > 1 else None


def _make(kind: type[VisionDataset], data: TorchvisionDataset, **arguments: object) -> VisionDataset:
    try:
        with downloading():
            return kind(**arguments)
    except (RuntimeError, OSError) as error:
        raise InputError(
            f'torchvision\'s data set "{data.name}" cannot be read from {data.root}: {error}.',
            hint="Put the data set's files into data.root, or set data.download = true and connect to a network.",
            transient=is_transient(error),
        ) from error
    except (ImportError, TypeError, ValueError) as error:
        # The class has unsupported split names, requires additional arguments, or needs a package that is missing.
        raise ConfigurationError(
            f'nightquant cannot use torchvision\'s data set "{data.name}": {str(error).rstrip(".")}.',
            hint='Use another data set, or data.kind = "image-folder" with one folder of images per class.',
        ) from error


def _part(dataset: VisionDataset, quotas: Quotas) -> Part:
    name, labels = type(dataset).__name__, _labels(dataset)

    def read(index: int) -> Image.Image:
        try:
            image = dataset[index][0]
        except (OSError, SyntaxError, ValueError) as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error
        if not isinstance(image, Image.Image):
            raise UnreadableError(f"expected an image, got {type(image).__name__}")
        return image

    return Part([f"{name}[{index}]" for index in range(len(labels))], labels, read, quotas)


def _labels(dataset: VisionDataset) -> list[int]:
    attributes = (getattr(dataset, attribute, None) for attribute in _LABELS)
    stored = next((labels for labels in attributes if labels is not None and len(labels) == len(dataset)), None)
    try:
        labels = list(map(int, (dataset[index][1] for index in range(len(dataset))) if stored is None else stored))
    except (TypeError, ValueError):
        labels = []
    if not labels or min(labels) < 0:
        raise ConfigurationError(
            f'torchvision\'s data set "{type(dataset).__name__}" does not have one class per image.',
            hint="Use a classification data set.",
        )
    return labels
