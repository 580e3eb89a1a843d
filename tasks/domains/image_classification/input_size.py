"""Choose keys for an image workload, and explain the choices, for ``nightquant init``.

The first rule that applies determines the image size and the normalization:

1. For weights that torchvision publishes, use the published transforms.
2. If nearly all images are squares of one size, at most 224 pixels wide, use that size.
3. For a model with a ``pretrained_cfg``, such as a timm model, use the values in ``pretrained_cfg``.
4. Otherwise, resize to 256 pixels and crop to 224.

In rule 2, a ``pretrained_cfg`` still determines the normalization.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError

from tasks.data.labels import SORTED
from tasks.data.picture_sets import find_layout, pictures_in
from tasks.data.pictures import Preprocessing, UnreadableError, picture_size
from tasks.data.sections import ImageFolder, Interpolation, Transforms
from tasks.data.weights import build_blank, read_fetched
from tasks.domains.image_classification import ImageWorkload, TorchvisionSpec, TorchvisionWeights
from tasks.domains.image_classification.network import preset_of, published
from tasks.job import Workspace
from tasks.results import Proposal
from tasks.user_code import call_factory
from tasks.workload.base import FactorySpec, FetchedCheckpoint, Kind

_OPENED = 10_000  # limit the number of images whose sizes are read, because reading 10,000 sizes takes a second
_NEARLY_ALL = 0.95
_PHOTOGRAPH = 224
_CALIBRATION_SHARE = 4
_DEFAULTS = Preprocessing(256, _PHOTOGRAPH, Transforms().mean, Transforms().std, Transforms().interpolation)


@dataclass(frozen=True)
class Choice:
    """The chosen preprocessing, and the reason for the choice."""

    geometry: Preprocessing
    reason: str

    @property
    def keys(self) -> dict[str, object]:
        """Keys of ``[data]`` that describe the preprocessing; transforms with default values are omitted."""
        geometry = self.geometry
        transforms: dict[str, object] = {"resize": geometry.resize} if geometry.resize != geometry.crop else {}
        if (geometry.mean, geometry.std) != (_DEFAULTS.mean, _DEFAULTS.std):
            transforms |= {"mean": geometry.mean, "std": geometry.std}
        if geometry.interpolation != _DEFAULTS.interpolation:
            transforms["interpolation"] = geometry.interpolation
        return {"image_size": geometry.crop} | ({"transforms": transforms} if transforms else {})


class _Declared(BaseModel):
    """Keys of a ``pretrained_cfg`` that describe how to prepare images, with timm's defaults."""

    input_size: tuple[PositiveInt, PositiveInt, PositiveInt]
    crop_pct: PositiveFloat = 0.875
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    fixed_input_size: bool = False

    @property
    def geometry(self) -> Preprocessing:
        """The model's preprocessing."""
        side, known = self.input_size[-1], self.interpolation in get_args(Interpolation)
        resize = max(side, math.floor(side / self.crop_pct))
        return Preprocessing(resize, side, self.mean, self.std, self.interpolation if known else "bicubic")


def choose_transforms(workload: ImageWorkload, pictures: Sequence[Path]) -> Choice | None:
    """Apply the rules in the module's docstring; return ``None`` if no image is readable."""
    step = math.ceil(len(pictures) / _OPENED) or 1
    sizes: Counter[tuple[int, int]] = Counter()
    for file in pictures[::step]:
        with suppress(UnreadableError):
            sizes[picture_size(file)] += 1
    if not sizes:
        return None
    if isinstance(workload.checkpoint, TorchvisionWeights):
        preset = preset_of(published(workload.checkpoint.weights))
        if preset is not None:
            return Choice(preset, f"the transforms of {workload.checkpoint.weights}")
    declared = _declared_by(workload.model)
    geometry, reason = (declared.geometry, "the model's pretrained_cfg") if declared else (_DEFAULTS, "the usual size")
    ((width, height), count), total = sizes.most_common(1)[0], sizes.total()
    is_fixed = declared is not None and declared.fixed_input_size
    if width == height <= _PHOTOGRAPH and count >= _NEARLY_ALL * total and not is_fixed:
        geometry = replace(geometry, resize=width, crop=width)
        reason = f"{count:,} of {total:,} {'sampled ' if step > 1 else ''}images are {width} x {width}"
    return Choice(geometry, reason)


def _declared_by(spec: Kind) -> _Declared | None:
    """Return the preprocessing that the user's model declares, or ``None``."""
    if not isinstance(spec, FactorySpec):
        return None
    model = build_blank(lambda: call_factory(spec))
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if not isinstance(config, Mapping):
        return None
    try:
        return _Declared.model_validate({key: value for key, value in config.items() if value is not None})
    except ValidationError:
        return None  # the attribute does not have timm's format


def propose_keys(workload: ImageWorkload, workspace: Workspace) -> Proposal:
    """Choose the image size and calibration size for image folders; read the number of outputs from the checkpoint."""
    sections: dict[str, dict[str, object]] = {"data": {}, "model": {}}
    reasons: dict[str, str] = {}
    data = workload.data
    if isinstance(data, ImageFolder) and Path(data.uri).is_dir():
        pictures = pictures_in(Path(data.uri))
        if choice := choose_transforms(workload, pictures):
            sections["data"] |= choice.keys
            reasons |= {f"data.{key}": choice.reason for key in choice.keys}
        if len(pictures) < _CALIBRATION_SHARE * data.calibration:
            sections["data"]["calibration"] = max(1, len(pictures) // _CALIBRATION_SHARE)
            reasons["data.calibration"] = f"a quarter of {len(pictures)} images"
        found = find_layout(Path(data.uri)).classes
        sections["data"]["classes"], reasons["data.classes"] = _published_classes(workload.checkpoint, found) or (
            found,
            SORTED,
        )
    if isinstance(workload.model, TorchvisionSpec) and (outputs := _outputs(workload, workspace)):
        sections["model"]["num_classes"] = outputs
        reasons["model.num_classes"] = "the outputs of the checkpoint's last layer"
    return Proposal(sections=sections, reasons=reasons)


def _published_classes(checkpoint: Kind, found: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    """Return the categories of published weights and a reason, or ``None`` unless they identify all found classes."""
    if not isinstance(checkpoint, TorchvisionWeights):
        return None
    categories = tuple(published(checkpoint.weights).meta["categories"])
    if not set(found) <= set(categories):
        return None
    return categories, f"the categories of {checkpoint.weights}, which include all class folders"


def _outputs(workload: ImageWorkload, workspace: Workspace) -> int:
    """Return the checkpoint's number of classes, or 0 if the weights do not exist yet."""
    match workload.checkpoint:
        case TorchvisionWeights(weights=name):
            return len(published(name).meta["categories"])
        case FetchedCheckpoint() as checkpoint:
            matrices = [tensor for tensor in read_fetched(checkpoint, workspace).values() if tensor.dim() == 2]
            return len(matrices[-1]) if matrices else 0
    return 0
