"""Image workloads of a few tiny pictures."""

from pathlib import Path
from typing import Any

from storage.artifacts import ArtifactStore
from tasks.run.stages import prepare
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef
from tasks.workload import Workload

RENDERED = {
    "kind": "rendered-characters",
    "characters": "OXT",
    "image_size": 16,
    "train": 30,
    "calibration": 12,
    "valid": 9,
    "test": 18,
}


def image_workload(**sections: Any) -> Workload:
    """A workload with one float recipe; `sections` replace its own."""
    document = {
        "schema_version": 1,
        "name": "tiny-images",
        "description": "a few tiny pictures",
        "domain": "image-classification",
        "data": RENDERED,
        "model": {"kind": "factory", "factory": "torch.nn:Identity"},
        "checkpoint": {"kind": "train", "batch_size": 8},
        "recipe": [{"name": "float", "method": "none"}],
        **sections,
    }
    return Workload.model_validate(document)


def rendered(root: Path, **data: Any) -> tuple[DatasetRef, ArtifactStore]:
    """A prepared set of rendered characters."""
    store = ArtifactStore(root)
    return prepare(Workspace(store), image_workload(data={**RENDERED, **data})), store
