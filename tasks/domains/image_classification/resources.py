"""What a deployed classifier needs besides the model: ``preprocessing.json``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.domains.image_classification.images import read_description
from tasks.domains.image_classification.sections import ImageFolder, TorchvisionDataset
from tasks.domains.image_classification.transforms import preprocessing

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.domains.image_classification.sections import ImageWorkload
    from tasks.job import Job

PREPROCESSING = "preprocessing.json"


def write_preprocessing(job: Job[ImageWorkload], store: ArtifactStore, folder: Path) -> str:
    """Write size, channels, normalization and class names; give the file's name."""
    dataset, workload = job.dataset, job.workload
    description = read_description(dataset, store)
    channels, height, width = dataset.sample_shape
    # None where the data set drew its pictures itself.
    transformed = isinstance(workload.data, ImageFolder | TorchvisionDataset)
    document = {
        "channels": channels,
        "order": "RGB" if channels == 3 else "as trained",
        "height": height,
        "width": width,
        "transforms": asdict(preprocessing(workload)) if transformed else None,
        "normalize": "(value / 255 - mean) / std, per channel, as float32 [batch, channels, height, width]",
        "mean": description.mean,
        "std": description.std,
        "classes": description.classes,
    }
    (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
    return PREPROCESSING
