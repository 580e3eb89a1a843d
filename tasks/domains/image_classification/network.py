"""Image classifiers: torchvision's models and published weights, the user's own models, and proposals for ``init``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torchvision
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_weight

from storage.errors import ConfigurationError
from storage.transfer import downloading
from tasks.data.picture_sets import find_layout, pictures_in
from tasks.data.pictures import Preprocessing, UnreadableError, picture_size
from tasks.data.samples import SORTED
from tasks.data.sections import ImageFolder, Interpolation, Transforms
from tasks.data.weights import build_blank
from tasks.domains.image_classification import ClassifierSpec, ImageWorkload, TorchvisionWeights
from tasks.environment.libraries import reported_as
from tasks.environment.user_code import call_factory, in_its_own_words
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef
from tasks.values.results import Proposal
from tasks.workload.base import FactorySpec, Kind

_REGISTERED = "quantized_"
_OPENED = 10_000  # limit the number of images whose sizes are read, because reading 10,000 sizes takes a second
_NEARLY_ALL = 0.95
_PHOTOGRAPH = 224
_CALIBRATION_SHARE = 4
_DEFAULTS = Preprocessing(256, _PHOTOGRAPH, Transforms().mean, Transforms().std, Transforms().interpolation)


def build_vision(spec: ClassifierSpec, dataset: DatasetRef) -> nn.Module:
    """Build the float model in evaluation mode with random weights."""
    if isinstance(spec, FactorySpec):
        return call_factory(spec).eval()
    settings = {"weights": None, "quantize": False, "num_classes": dataset.classes}
    model: nn.Module = torchvision.models.get_model(_REGISTERED + spec.name, **settings)
    return model.eval()


def published(name: str) -> WeightsEnum:
    """Look up float torchvision weights by name, for example ``ResNet18_Weights.IMAGENET1K_V1``."""
    hint = "Use a name such as ResNet18_Weights.IMAGENET1K_V1."
    with in_its_own_words(f'torchvision does not publish weights named "{name}"', hint):
        weights = get_weight(name)
    if "unquantized" in weights.meta:
        raise ConfigurationError(
            f"The weights {name} are already quantized.",
            hint=f"Use the original float weights: {weights.meta['unquantized']}.",
        )
    return weights


def load_weights(weights: WeightsEnum) -> dict[str, Tensor]:
    """Load published weights from torch.hub's folder, or download missing weights."""
    hint = "Connect to a network, or put the weights file into $TORCH_HOME/hub/checkpoints/."
    with reported_as(f"The weights {weights} could not be loaded from {weights.url}", hint), downloading():
        # The file name contains the first digits of the file's SHA-256, which torch.hub checks after a download.
        settings = {"progress": False, "check_hash": True, "weights_only": True, "map_location": "cpu"}
        return dict(weights.get_state_dict(**settings))


def propose_keys(workload: ImageWorkload, workspace: Workspace) -> Proposal:
    """Choose the image size, the calibration size and the classes for image folders."""
    keys: dict[str, object] = {}
    reasons: dict[str, str] = {}
    data = workload.data
    if isinstance(data, ImageFolder) and Path(data.uri).is_dir():
        pictures = pictures_in(Path(data.uri))
        if choice := choose_preprocessing(workload, pictures):
            keys |= _keys(choice[0])
            reasons |= {f"data.{key}": choice[1] for key in keys}
        if len(pictures) < _CALIBRATION_SHARE * data.calibration:
            keys["calibration"] = max(1, len(pictures) // _CALIBRATION_SHARE)
            reasons["data.calibration"] = f"a quarter of {len(pictures)} images"
        keys["classes"], reasons["data.classes"] = _classes(workload.checkpoint, find_layout(Path(data.uri)).classes)
    return Proposal(sections={"data": keys}, reasons=reasons)


def choose_preprocessing(workload: ImageWorkload, pictures: Sequence[Path]) -> tuple[Preprocessing, str] | None:
    """Apply the rules in docs/vision.md in order; return the choice and its reason, or ``None`` without images."""
    sizes: Counter[tuple[int, int]] = Counter()
    for file in pictures[:: math.ceil(len(pictures) / _OPENED) or 1]:
        with suppress(UnreadableError):
            sizes[picture_size(file)] += 1
    if not sizes:
        return None
    if isinstance(workload.checkpoint, TorchvisionWeights):
        preset = published(workload.checkpoint.weights).transforms()
        if hasattr(preset, "crop_size"):
            resize, crop, interpolation = preset.resize_size[0], preset.crop_size[0], preset.interpolation.value
            geometry = Preprocessing(resize, crop, tuple(preset.mean), tuple(preset.std), interpolation)
            return geometry, f"the transforms of {workload.checkpoint.weights}"
    config = _pretrained(workload.model)
    geometry, reason = (_declared(config), "the model's pretrained_cfg") if config else (_DEFAULTS, "the usual size")
    ((width, height), count), total = sizes.most_common(1)[0], sizes.total()
    if width == height <= _PHOTOGRAPH and count >= _NEARLY_ALL * total and not config.get("fixed_input_size"):
        geometry = replace(geometry, resize=width, crop=width)
        reason = f"{count:,} of {total:,} images are {width} x {width}"
    return geometry, reason


def _keys(geometry: Preprocessing) -> dict[str, object]:
    """Return the keys of ``[data]`` that describe the preprocessing, without default values."""
    transforms: dict[str, object] = {"resize": geometry.resize} if geometry.resize != geometry.crop else {}
    if (geometry.mean, geometry.std) != (_DEFAULTS.mean, _DEFAULTS.std):
        transforms |= {"mean": geometry.mean, "std": geometry.std}
    if geometry.interpolation != _DEFAULTS.interpolation:
        transforms["interpolation"] = geometry.interpolation
    return {"image_size": geometry.crop} | ({"transforms": transforms} if transforms else {})


def _pretrained(spec: Kind) -> dict[str, Any]:
    """Return the ``pretrained_cfg`` of the user's model, or ``{}``."""
    model = build_blank(lambda: call_factory(spec)) if isinstance(spec, FactorySpec) else None
    config = getattr(model, "pretrained_cfg", None)
    return config if isinstance(config, dict) and config.get("input_size") else {}


def _declared(config: dict[str, Any]) -> Preprocessing:
    """Return the preprocessing that a ``pretrained_cfg`` describes, with timm's defaults."""
    side, interpolation = config["input_size"][-1], config.get("interpolation") or "bicubic"
    return Preprocessing(
        max(side, math.floor(side / (config.get("crop_pct") or 0.875))),
        side,
        tuple(config.get("mean") or _DEFAULTS.mean),
        tuple(config.get("std") or _DEFAULTS.std),
        interpolation if interpolation in get_args(Interpolation) else "bicubic",
    )


def _classes(checkpoint: Kind, found: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the class names and a reason: the categories of published weights if they include all found classes."""
    if isinstance(checkpoint, TorchvisionWeights):
        categories = tuple(published(checkpoint.weights).meta["categories"])
        if set(found) <= set(categories):
            return categories, f"the categories of {checkpoint.weights}, which include all class folders"
    return found, SORTED
