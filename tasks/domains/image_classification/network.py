"""Image classifiers: torchvision's models, published weights and transforms, and the user's own models."""

from __future__ import annotations

from dataclasses import replace

import torchvision
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_weight

from storage.errors import ConfigurationError, InputError, is_transient
from storage.transfer import downloading
from tasks.data.pictures import Preprocessing
from tasks.data.sections import Pictures
from tasks.domains.image_classification import ClassifierSpec, ImageWorkload
from tasks.refs import DatasetRef
from tasks.user_code import call_factory
from tasks.workload.base import FactorySpec

_REGISTERED = "quantized_"
# GoogLeNet's and Inception's auxiliary heads are left out, because only training uses them. Both models normalize the
# preprocessed images a second time, as their published weights require.
_WITH_HEADS = {"aux_logits": False, "transform_input": True, "init_weights": True}
_SPECIAL = {"googlenet": _WITH_HEADS, "inception_v3": _WITH_HEADS}
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def build_vision(spec: ClassifierSpec, dataset: DatasetRef) -> nn.Module:
    """Build the float model in evaluation mode with random weights."""
    if isinstance(spec, FactorySpec):
        return call_factory(spec).eval()
    classes = spec.num_classes or dataset.classes
    if classes < dataset.classes:
        raise ConfigurationError(
            f"model.num_classes is {classes}, but the data set has {dataset.classes} classes.",
            hint="Remove num_classes to use the number of classes in the data.",
        )
    model: nn.Module = torchvision.models.get_model(
        _REGISTERED + spec.name, weights=None, quantize=False, num_classes=classes, **_SPECIAL.get(spec.name, {})
    )
    return model.eval()


def published(name: str) -> WeightsEnum:
    """Look up float torchvision weights by name, for example ``ResNet18_Weights.IMAGENET1K_V1``."""
    try:
        weights = get_weight(name)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f'torchvision does not publish weights named "{name}".',
            hint="Use a name such as ResNet18_Weights.IMAGENET1K_V1.",
        ) from error
    if "unquantized" in weights.meta:
        raise ConfigurationError(
            f"The weights {name} are already quantized.",
            hint=f"Use the original float weights: {weights.meta['unquantized']}.",
        )
    return weights


def load_weights(weights: WeightsEnum) -> dict[str, Tensor]:
    """Load published weights from torch.hub's folder, or download missing weights; omit the auxiliary heads."""
    try:
        # The file name contains the first digits of the file's SHA-256, which torch.hub checks after a download.
        with downloading():
            state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True, map_location="cpu")
    except Exception as error:  # torch's unpickler can raise any exception for a truncated file
        raise InputError(
            f"The weights {weights} could not be loaded from {weights.url}: {error}.",
            hint="Connect to a network, or put the weights file into $TORCH_HOME/hub/checkpoints/.",
            transient=is_transient(error),
        ) from error
    return {key: tensor for key, tensor in state.items() if not key.startswith(_AUXILIARY)}


def preprocessing(workload: ImageWorkload, data: Pictures) -> Preprocessing:
    """Return the preprocessing that ``[data.transforms]`` describes.

    ``crop`` defaults to ``image_size``, and ``resize`` defaults to ``crop``. The ``weights`` preset uses the transforms
    of the weights in ``[checkpoint]``, except for sizes that the workload file sets.
    """
    settings = data.transforms
    side = settings.crop or data.image_size
    configured = Preprocessing(side, side, settings.mean, settings.std, settings.interpolation)
    geometry = _preset(workload) if settings.preset == "weights" else configured
    geometry = replace(geometry, resize=settings.resize or geometry.resize, crop=settings.crop or geometry.crop)
    if geometry.crop > geometry.resize:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms resizes images to {geometry.resize} pixels, which is less '
            f"than the crop of {geometry.crop} pixels.",
            hint=f"Set resize to {geometry.crop} or more.",
        )
    if len(geometry.mean) != 3 or len(geometry.std) != 3 or min(geometry.std) <= 0:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms.mean {list(geometry.mean)} or data.transforms.std '
            f"{list(geometry.std)} is invalid.",
            hint="Set three means, and three standard deviations greater than 0.",
        )
    return geometry


def _preset(workload: ImageWorkload) -> Preprocessing:
    name = getattr(workload.checkpoint, "weights", "")
    preset = preset_of(published(name)) if name else None
    if preset is None:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms.preset = "weights" needs checkpoint.kind = '
            f'"torchvision-weights" with the weights of an image classifier.',
            hint="Set resize, crop, mean and std in [data.transforms] instead.",
        )
    return preset


def preset_of(weights: WeightsEnum) -> Preprocessing | None:
    """Return the transforms that torchvision publishes with weights, or ``None`` if the model is not a classifier."""
    preset = weights.transforms()
    if not hasattr(preset, "crop_size"):
        return None
    return Preprocessing(
        preset.resize_size[0], preset.crop_size[0], tuple(preset.mean), tuple(preset.std), preset.interpolation.value
    )
