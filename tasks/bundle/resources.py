"""Files that turn raw data into a model's inputs, and its outputs into words: by purpose of the workload."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.artifacts import ArtifactStore
from tasks.refs import DatasetRef
from tasks.workload.data import ImageFolder, TorchvisionDataset
from tasks.workload.workload import Purpose, Workload

Maker = Callable[[Workload, DatasetRef, ArtifactStore, Path], dict[str, str]]

VOCABULARY, PREPROCESSING = "vocabulary.json", "preprocessing.json"


def write_resources(workload: Workload, dataset: DatasetRef, store: ArtifactStore, folder: Path) -> dict[str, str]:
    """Write the files that this purpose needs; give each one's name by what it is."""
    return _MAKERS[workload.purpose](workload, dataset, store, folder)


def _vocabulary(workload: Workload, dataset: DatasetRef, store: ArtifactStore, folder: Path) -> dict[str, str]:
    """Words by id: one JSON array, one word a line."""
    from tasks.domains.language_model.corpus import load_vocabulary

    words = ",\n".join(json.dumps(word) for word in load_vocabulary(dataset, store))
    (folder / VOCABULARY).write_text(f"[\n{words}\n]\n", encoding="ascii")
    return {"vocabulary": VOCABULARY}


def _preprocessing(workload: Workload, dataset: DatasetRef, store: ArtifactStore, folder: Path) -> dict[str, str]:
    """Size, channels, normalization and class names of an image classifier."""
    artifact = store.path(dataset.kind, dataset.digest)
    description = json.loads((artifact / "images.json").read_text(encoding="utf-8"))
    channels, height, width = dataset.sample_shape
    document: dict[str, Any] = {
        "channels": channels,
        "order": "RGB" if channels == 3 else "as trained",
        "height": height,
        "width": width,
        "transforms": _applied(workload),
        "normalize": "(value / 255 - mean) / std, per channel, as float32 [batch, channels, height, width]",
        "mean": description["mean"],
        "std": description["std"],
        "classes": description["classes"],
    }
    (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
    return {"preprocessing": PREPROCESSING}


def _applied(workload: Workload) -> dict[str, Any] | None:
    """What was done to each picture, a preset's own values included; None where the data set drew them itself."""
    if not isinstance(workload.data, ImageFolder | TorchvisionDataset):
        return None
    from tasks.domains.image_classification.transforms import preprocessing

    return asdict(preprocessing(workload))


def _nothing(workload: Workload, dataset: DatasetRef, store: ArtifactStore, folder: Path) -> dict[str, str]:
    return {}


_MAKERS: dict[Purpose, Maker] = {
    "language-model": _vocabulary,
    "image-classification": _preprocessing,
    "sequence": _nothing,
}
