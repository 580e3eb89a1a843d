"""Choose keys for an image workload, and explain the choices, for ``nightquant init``.

The first rule that applies determines the image size and the normalization:

1. For weights that torchvision publishes, use the published transforms.
2. If nearly all images are squares of one size, at most 224 pixels wide, use that size.
3. For a model with a ``pretrained_cfg``, such as a timm model, use the values in ``pretrained_cfg``.
4. For other small images, use the median of their shorter sides, rounded to a multiple of 32.
5. For larger images, use the transforms of the model's torchvision weights, or resize to 256 pixels and crop to 224.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from statistics import median_low
from typing import get_args

import torchvision
from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError
from torchvision.models import WeightsEnum, get_model_weights, list_models

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

_CALIBRATION_SHARE = 4  # at most one image in four is used for calibration
_OPENED = 10_000  # limit the number of images whose sizes are read, because reading 10,000 sizes takes a second
_NEARLY_ALL = 0.95
_MULTIPLE = 32  # factor by which torchvision's models reduce an image's height and width
_PHOTOGRAPH = 224
_DEFAULTS = Preprocessing(256, _PHOTOGRAPH, Transforms().mean, Transforms().std)


@dataclass(frozen=True)
class Choice:
    """The preprocessing chosen for images, and the reason for the choice."""

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
    def side(self) -> int:
        """Height and width of an input."""
        return self.input_size[-1]

    def geometry(self, side: int, resize: int) -> Preprocessing:
        """Return the model's preprocessing for the given crop and resize sizes."""
        known = self.interpolation in get_args(Interpolation)
        return Preprocessing(resize, side, self.mean, self.std, self.interpolation if known else "bicubic")


def choose_transforms(workload: ImageWorkload, pictures: Sequence[Path]) -> Choice | None:
    """Apply the rules in the module's docstring; return ``None`` if no image is readable."""
    step = math.ceil(len(pictures) / _OPENED)
    sizes = Counter(_sizes(pictures[:: step or 1]))
    if not sizes:
        return None
    sampled = "sampled " if step > 1 else ""
    if choice := _choice_from_weights(workload.checkpoint):
        equal = _choice_from_sizes(sizes, sampled, None)
        return replace(choice, reason=f"{choice.reason}; {equal.reason}") if equal else choice
    declared = _declared_by(workload.model)
    if choice := _choice_from_sizes(sizes, sampled, declared):
        return choice
    if declared is not None:
        resize = max(declared.side, math.floor(declared.side / declared.crop_pct))
        return Choice(declared.geometry(declared.side, resize), "the model's pretrained_cfg")
    median = median_low(min(size) for size in sizes.elements())
    if median < _PHOTOGRAPH:
        side = max(_MULTIPLE, round(median / _MULTIPLE) * _MULTIPLE)
        reason = f"the nearest multiple of {_MULTIPLE} to {median}, the median of the images' shorter sides"
        return Choice(replace(_DEFAULTS, resize=side, crop=side), reason)
    large = f"for large images (the median of the shorter sides is {median})"
    if isinstance(workload.model, TorchvisionSpec):
        weights: WeightsEnum = next(iter(get_model_weights(workload.model.name)))
        if preset := preset_of(weights):
            return Choice(preset, f"the transforms of {weights}, {large}")
    return Choice(_DEFAULTS, f"the usual transforms, {large}")


def _choice_from_weights(checkpoint: Kind) -> Choice | None:
    if isinstance(checkpoint, TorchvisionWeights):
        weights, reason = published(checkpoint.weights), f"the transforms of {checkpoint.weights}"
    elif isinstance(checkpoint, FetchedCheckpoint) and (entry := _published_as(PurePosixPath(checkpoint.uri).name)):
        weights, reason = entry, f"the transforms of {entry}, which torchvision publishes under this file name"
    else:
        return None
    preset = preset_of(weights)
    return None if preset is None else Choice(preset, reason)


def _declared_by(spec: Kind) -> _Declared | None:
    """Return the preprocessing that a model declares, or ``None``; torchvision's models never declare preprocessing."""
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


def _choice_from_sizes(sizes: Counter[tuple[int, int]], sampled: str, declared: _Declared | None) -> Choice | None:
    (size, count), total = sizes.most_common(1)[0], sizes.total()
    side = size[0]
    if size != (side, side) or side > _PHOTOGRAPH or count < _NEARLY_ALL * total:
        return None
    share = f"all {count:,}" if count == total else f"{count:,} of {total:,}"
    reason = f"{share} {sampled}images are {side} x {side}"
    if declared is None:
        return Choice(replace(_DEFAULTS, resize=side, crop=side), reason)
    if declared.side != side:
        if declared.fixed_input_size:
            return None
        reason += f"; the model's pretrained_cfg specifies {declared.side}"
    return Choice(declared.geometry(side, side), reason)


def _sizes(files: Sequence[Path]) -> Iterator[tuple[int, int]]:
    for file in files:
        try:
            yield picture_size(file)
        except UnreadableError:
            continue


def _published_as(file: str) -> WeightsEnum | None:
    known = (weights for name in list_models(module=torchvision.models) for weights in get_model_weights(name))
    return next((weights for weights in known if weights.url.rpartition("/")[2] == file), None)


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
