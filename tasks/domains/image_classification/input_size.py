"""The keys of an image workload that ``nightquant init`` chooses, and why.

Of size and normalization, the first rule that applies decides:

1. Weights that torchvision published: their transforms.
2. Nearly all pictures are squares of one size, 224 pixels or less: that size.
3. A model with a ``pretrained_cfg``, as timm's models have: what it says.
4. Other small pictures: the median of their shorter sides, rounded to a multiple of 32.
5. Larger pictures: the transforms of torchvision's weights for this model, or 224 pixels cropped out of 256.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from statistics import median_low
from typing import TYPE_CHECKING, get_args

import torchvision
from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError
from torchvision.models import WeightsEnum, get_model_weights, list_models

from tasks.data.image_folder import pictures_in
from tasks.data.pictures import Preprocessing, UnreadableError, picture_size
from tasks.data.sections import ImageFolder, Interpolation, Transforms
from tasks.data.weights import build_blank, read_fetched
from tasks.domains.base import Proposal
from tasks.domains.image_classification import ImageWorkload, TorchvisionSpec, TorchvisionWeights
from tasks.domains.image_classification.network import preset_of, published
from tasks.user_code import call_factory
from tasks.workload.base import FactorySpec, FetchedCheckpoint

if TYPE_CHECKING:
    from tasks.job import Workspace

_CALIBRATION_SHARE = 4  # at most one picture in so many calibrates
_OPENED = 10_000  # pictures whose sizes are read at most, which takes a second
_NEARLY_ALL = 0.95
_MULTIPLE = 32  # by how much torchvision's models make a picture smaller
_PHOTOGRAPH = 224
_DEFAULTS = Preprocessing(256, _PHOTOGRAPH, Transforms().mean, Transforms().std)


@dataclass(frozen=True)
class Choice:
    """How to prepare pictures, and why."""

    geometry: Preprocessing
    reason: str

    @property
    def keys(self) -> dict[str, object]:
        """The keys of ``[data]`` that bring it about, without those that are the default."""
        chosen = self.geometry
        transforms: dict[str, object] = {"resize": chosen.resize} if chosen.resize != chosen.crop else {}
        if (chosen.mean, chosen.std) != (_DEFAULTS.mean, _DEFAULTS.std):
            transforms |= {"mean": chosen.mean, "std": chosen.std}
        if chosen.interpolation != _DEFAULTS.interpolation:
            transforms["interpolation"] = chosen.interpolation
        return {"image_size": chosen.crop} | ({"transforms": transforms} if transforms else {})


class _Declared(BaseModel):
    """The keys of a ``pretrained_cfg`` that say how pictures are prepared, with timm's defaults."""

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
        """Return the model's normalization at a size."""
        known = self.interpolation in get_args(Interpolation)
        return Preprocessing(resize, side, self.mean, self.std, self.interpolation if known else "bicubic")


@dataclass(frozen=True)
class _Evidence:
    """A workload, and how many of its pictures have each width and height; `sampled` if not all were opened."""

    workload: ImageWorkload
    sizes: Counter[tuple[int, int]]
    sampled: bool

    @property
    def median(self) -> int:
        """The median of the pictures' shorter sides."""
        return median_low(min(size) for size in self.sizes.elements())

    @cached_property
    def declared(self) -> _Declared | None:
        """What the user's model says of its pictures; None if it says nothing, or is one of torchvision's."""
        spec = self.workload.model
        if not isinstance(spec, FactorySpec):
            return None
        model = build_blank(lambda: call_factory(spec))
        config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
        if not isinstance(config, Mapping):
            return None
        try:
            return _Declared.model_validate({key: value for key, value in config.items() if value is not None})
        except ValidationError:
            # Another library's attribute of the same name.
            return None


def choose_transforms(workload: ImageWorkload, pictures: Sequence[Path]) -> Choice | None:
    """Choose size and normalization for pictures; None if none of them can be read."""
    step = math.ceil(len(pictures) / _OPENED)
    evidence = _Evidence(workload, Counter(_sizes(pictures[:: step or 1])), sampled=step > 1)
    if not evidence.sizes:
        return None
    return next(choice for rule in _RULES if (choice := rule(evidence)) is not None)


def _of_published_weights(evidence: _Evidence) -> Choice | None:
    checkpoint = evidence.workload.checkpoint
    if isinstance(checkpoint, TorchvisionWeights):
        weights, reason = published(checkpoint.weights), f"the transforms of {checkpoint.weights}"
    elif isinstance(checkpoint, FetchedCheckpoint) and (found := _published_as(PurePosixPath(checkpoint.uri).name)):
        weights, reason = found, f"the transforms of {found}, which torchvision publishes under this file name"
    else:
        return None
    preset = preset_of(weights)
    return None if preset is None else Choice(preset, reason)


def _of_equal_pictures(evidence: _Evidence) -> Choice | None:
    (size, count), total = evidence.sizes.most_common(1)[0], evidence.sizes.total()
    side, declared = size[0], evidence.declared
    if size != (side, side) or side > _PHOTOGRAPH or count < _NEARLY_ALL * total:
        return None
    share = f"all {count:,}" if count == total else f"{count:,} of {total:,}"
    reason = f"{share} {'sampled ' if evidence.sampled else ''}pictures are {side} x {side}"
    if declared is None:
        return Choice(replace(_DEFAULTS, resize=side, crop=side), reason)
    if declared.side != side:
        if declared.fixed_input_size:
            return None
        reason += f"; the model's pretrained_cfg says {declared.side}"
    return Choice(declared.geometry(side, side), reason)


def _of_the_model(evidence: _Evidence) -> Choice | None:
    declared = evidence.declared
    if declared is None:
        return None
    resize = max(declared.side, math.floor(declared.side / declared.crop_pct))
    return Choice(declared.geometry(declared.side, resize), "the model's pretrained_cfg")


def _of_small_pictures(evidence: _Evidence) -> Choice | None:
    median = evidence.median
    side = max(_MULTIPLE, round(median / _MULTIPLE) * _MULTIPLE)
    if median >= _PHOTOGRAPH:
        return None
    reason = f"the nearest multiple of {_MULTIPLE} to {median}, the median of the pictures' shorter sides"
    return Choice(replace(_DEFAULTS, resize=side, crop=side), reason)


def _of_photographs(evidence: _Evidence) -> Choice:
    spec = evidence.workload.model
    size = f"for large pictures (the median of the shorter sides is {evidence.median})"
    if isinstance(spec, TorchvisionSpec):
        weights: WeightsEnum = next(iter(get_model_weights(spec.name)))
        if preset := preset_of(weights):
            return Choice(preset, f"the transforms of {weights}, {size}")
    return Choice(_DEFAULTS, f"the usual transforms, {size}")


_RULES: tuple[Callable[[_Evidence], Choice | None], ...] = (
    _of_published_weights,
    _of_equal_pictures,
    _of_the_model,
    _of_small_pictures,
    _of_photographs,
)


def _sizes(files: Sequence[Path]) -> Iterator[tuple[int, int]]:
    for file in files:
        try:
            yield picture_size(file)
        except UnreadableError:
            continue


def _published_as(file: str) -> WeightsEnum | None:
    """Return torchvision's weights of a classifier that are published in a file of such a name."""
    known = (weights for name in list_models(module=torchvision.models) for weights in get_model_weights(name))
    return next((weights for weights in known if weights.url.rpartition("/")[2] == file), None)


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
            matrices = [tensor for tensor in read_fetched(checkpoint, workspace).values() if tensor.dim() == 2]
            return len(matrices[-1]) if matrices else 0
    return 0
