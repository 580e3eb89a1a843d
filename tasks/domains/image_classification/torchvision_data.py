"""Data sets of ``torchvision.datasets`` by class name."""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import file_digest, source_digest
from storage.errors import ConfigurationError, InputError
from tasks.domains.image_classification import fill as filling
from tasks.domains.image_classification.images import Description
from tasks.domains.image_classification.sections import TorchvisionDataset
from tasks.domains.image_classification.splits import stratified_order
from tasks.domains.image_classification.transforms import Preprocessing, UnreadableError, preprocessing
from tasks.domains.image_classification.writer import KIND, ImageWriter, Pixels, find_published, publish
from tasks.job import Progress, silent
from tasks.refs import DatasetRef
from tasks.workload.workload import Workload

# Where torchvision's classes keep the labels of all samples, so that no picture is decoded to learn them.
_LABELS = ("targets", "labels", "_labels", "y")
_HELD_OUT_SPLITS = ("test", "val", "valid")


def prepare_torchvision(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    """Resize and split one of torchvision's labelled image sets.

    Its own held-out part (``train=False``, or the split "test" or "val") is the test split; where it has none,
    ``valid_share`` of the whole is. Valid and calibration samples are taken from the training part.

    Raises
    ------
    ConfigurationError
        There is no such class, it cannot be downloaded, or it holds no images with one label each.
    InputError
        The data is not under ``data.root`` and ``download`` is not asked for, or it is broken.
    """
    data = workload.data
    if not isinstance(data, TorchvisionDataset):
        raise TypeError(f"not one of torchvision's data sets: {data.kind}")
    geometry = preprocessing(workload)
    train, test = _open(data)
    made_from = {
        "data": data.model_dump(mode="json", exclude={"root", "download", "transforms", "image_size"}),
        "preprocessing": asdict(geometry),
        "content": [_content(part) for part in (train, test) if part is not None],
        "libraries": {module.__name__: module.__version__ for module in (PIL, torchvision)},
        "source": source_digest(filling, Preprocessing, ImageWriter, stratified_order, _fill, _read),
    }
    digest = artifact_digest(KIND, made_from)
    found = find_published(store, digest)
    if found is not None:
        return found
    labels = [_labels(data.name, part) for part in (train, test) if part is not None]
    count = 1 + max(max(part) for part in labels)
    names = tuple(str(name) for name in getattr(train, "classes", ()))
    description = Description(
        classes=names if len(names) >= count else tuple(str(label) for label in range(count)),
        mean=geometry.mean,
        std=geometry.std,
    )
    fill = partial(_fill, parts=(train, test), labels=labels, data=data, geometry=geometry, progress=progress)
    return publish(store, digest, made_from, description, geometry.shape, fill)


def _open(data: TorchvisionDataset) -> tuple[Any, Any]:
    """The training part and the held-out part (None where the class has none)."""
    kind = getattr(torchvision.datasets, data.name, None)
    if not (inspect.isclass(kind) and issubclass(kind, torchvision.datasets.VisionDataset)):
        close = difflib.get_close_matches(data.name, torchvision.datasets.__all__, n=5, cutoff=0.4)
        raise ConfigurationError(
            f'torchvision has no data set "{data.name}".', hint=f"Did you mean {', '.join(close)}?" if close else ""
        )
    parameters = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {}
    if "root" in parameters:
        arguments["root"] = data.root
    if "download" in parameters:
        arguments["download"] = data.download
    elif data.download:
        raise ConfigurationError(
            f'torchvision cannot download "{data.name}".', hint="Put it under data.root and set data.download = false."
        )
    make = partial(_make, kind, data)
    if "train" in parameters:
        return make({**arguments, "train": True}), make({**arguments, "train": False})
    if "split" in parameters:
        return make({**arguments, "split": "train"}), _held_out(kind, data, arguments)
    return make(arguments), None


def _held_out(kind: Any, data: TorchvisionDataset, arguments: dict[str, Any]) -> Any:
    for split in _HELD_OUT_SPLITS:
        try:
            return _make(kind, data, {**arguments, "split": split})
        except ConfigurationError:
            # This class does not call it so.
            continue
    raise ConfigurationError(f'torchvision\'s "{data.name}" has no split called {", ".join(_HELD_OUT_SPLITS)}.')


def _make(kind: Any, data: TorchvisionDataset, arguments: dict[str, Any]) -> Any:
    try:
        return kind(**arguments)
    except (RuntimeError, OSError) as error:
        hint = (
            "Check the network, or put the files there by hand."
            if data.download
            else "Put the files there, or let them be fetched with data.download = true."
        )
        raise InputError(
            f'torchvision\'s "{data.name}" cannot be read from {data.root}: {error}.', hint=hint
        ) from error
    except (ImportError, TypeError, ValueError) as error:
        # Another name for its splits, an argument that every other class does without, a package that is not here.
        raise ConfigurationError(
            f'torchvision\'s "{data.name}" cannot be used as a data set: {str(error).rstrip(".")}.',
            hint='Choose another one, or write its images to one folder per class and use data.kind = "image-folder".',
        ) from error


def _labels(name: str, dataset: Any) -> list[int]:
    for attribute in _LABELS:
        found = getattr(dataset, attribute, None)
        if found is not None and len(found) == len(dataset):
            return _as_labels(name, list(found))
    return _as_labels(name, [dataset[index][1] for index in range(len(dataset))])


def _as_labels(name: str, labels: Sequence[Any]) -> list[int]:
    try:
        whole = [int(label) for label in labels]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f'torchvision\'s "{name}" has no single class per image.', hint="Choose a data set for classification."
        ) from error
    if not whole or min(whole) < 0:
        raise InputError(f'torchvision\'s "{name}" holds no labelled images.')
    return whole


def _fill(
    writer: ImageWriter,
    parts: tuple[Any, Any],
    labels: list[list[int]],
    data: TorchvisionDataset,
    geometry: Preprocessing,
    progress: Progress,
) -> Sequence[str]:
    train, test = parts
    pool = filling.quotas_of_pool(
        len(train), data.calibration, test=None if test is not None else data.valid_share, valid=data.valid_share
    )
    shared = [filling.Part(_names(train), labels[0], partial(_read, dataset=train, geometry=geometry), pool)]
    if test is not None:
        read = partial(_read, dataset=test, geometry=geometry)
        shared.insert(0, filling.Part(_names(test), labels[1], read, (("test", data.max_test),)))
    return filling.fill(writer, shared, seed=data.seed, max_corrupt_share=0, progress=progress)


def _names(dataset: Any) -> Sequence[str]:
    return [f"{type(dataset).__name__}[{index}]" for index in range(len(dataset))]


def _read(index: int, dataset: Any, geometry: Preprocessing) -> Pixels:
    try:
        image = dataset[index][0]
    except (OSError, SyntaxError, ValueError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error
    if not isinstance(image, Image.Image):
        raise UnreadableError(f"expected a picture, got {type(image).__name__}")
    return geometry.pixels(image)


def _content(dataset: Any) -> str:
    """Digest of what the data set holds, as far as it lies in arrays or files; of its description otherwise."""
    hasher = hashlib.sha256(f"{type(dataset).__name__} {len(dataset)}".encode())
    arrays = (getattr(dataset, name, None) for name in ("data", *_LABELS))
    for array in arrays:
        if isinstance(array, np.ndarray | torch.Tensor):
            hasher.update(np.ascontiguousarray(array).data)
        elif isinstance(array, list):
            hasher.update(repr(array).encode())
    for sample in getattr(dataset, "samples", getattr(dataset, "_samples", getattr(dataset, "_image_files", ()))):
        first = sample[0] if isinstance(sample, tuple) else sample
        if isinstance(first, str | Path):
            hasher.update(f"{Path(first).name} {file_digest(Path(first))}".encode())
        elif isinstance(first, np.ndarray | torch.Tensor):
            hasher.update(np.ascontiguousarray(first).data)
            hasher.update(repr(sample[1:]).encode())
    return hasher.hexdigest()
