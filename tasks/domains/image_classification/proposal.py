"""The keys of an image workload that its pictures, its model and its weights decide, for ``nightquant init``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.domains.base import Proposal
from tasks.domains.image_classification.image_folder import pictures_in
from tasks.domains.image_classification.input_size import choose_transforms
from tasks.domains.image_classification.model import published
from tasks.domains.image_classification.sections import (
    ImageFolder,
    ImageWorkload,
    TorchvisionSpec,
    TorchvisionWeights,
)
from tasks.workload.base import FetchedCheckpoint

if TYPE_CHECKING:
    from tasks.job import Workspace

_CALIBRATION_SHARE = 4  # at most one picture in so many calibrates


def propose_keys(workload: ImageWorkload, workspace: Workspace) -> Proposal:
    """Choose size and calibration for a folder of pictures, and as many outputs as the checkpoint has."""
    sections: dict[str, dict[str, object]] = {}
    reasons: dict[str, str] = {}
    data, folder = workload.data, Path(getattr(workload.data, "uri", ""))
    if isinstance(data, ImageFolder) and folder.is_dir():
        pictures = pictures_in(folder)
        if choice := choose_transforms(workload, pictures):
            sections["data"] = choice.keys
            reasons |= {f"data.{key}": choice.reason for key in choice.keys}
        if len(pictures) < _CALIBRATION_SHARE * data.calibration:
            sections.setdefault("data", {})["calibration"] = max(1, len(pictures) // _CALIBRATION_SHARE)
            reasons["data.calibration"] = f"a quarter of {len(pictures)} pictures"
    if isinstance(workload.model, TorchvisionSpec) and (outputs := _outputs(workload, workspace)):
        sections["model"] = {"num_classes": outputs}
        reasons["model.num_classes"] = "the outputs of the checkpoint's last layer"
    return Proposal(sections, reasons)


def _outputs(workload: ImageWorkload, workspace: Workspace) -> int:
    """Count the classes that the weights were made for; 0 if there are no weights yet."""
    match workload.checkpoint:
        case TorchvisionWeights(weights=name):
            return len(published(name).meta["categories"])
        case FetchedCheckpoint() as checkpoint:
            from tasks.checkpoint import read_fetched

            matrices = [tensor for tensor in read_fetched(checkpoint, workspace).values() if tensor.dim() == 2]
            return len(matrices[-1]) if matrices else 0
    return 0
