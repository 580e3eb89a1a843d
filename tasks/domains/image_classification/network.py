"""Image classifiers: torchvision's models and published weights with their transforms, and the user's own models."""

from __future__ import annotations

from dataclasses import replace

import torchvision
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_weight

from storage.errors import ConfigurationError, InputError
from storage.remote import with_retries
from storage.transient import is_transient
from tasks.data.pictures import Preprocessing
from tasks.data.sections import Pictures
from tasks.domains.image_classification import ClassifierSpec, ImageWorkload
from tasks.refs import DatasetRef
from tasks.user_code import call_factory
from tasks.workload.base import FactorySpec

_REGISTERED = "quantized_"
# GoogLeNet's and Inception v3's auxiliary heads matter only in training and are left out, and their published weights
# expect images normalized anew, which changes nothing for weights that are trained here.
_WITH_HEADS = {"aux_logits": False, "transform_input": True, "init_weights": True}
_SPECIAL = {"googlenet": _WITH_HEADS, "inception_v3": _WITH_HEADS}
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def build_vision(spec: ClassifierSpec, dataset: DatasetRef) -> nn.Module:
    """Build the float model in evaluation mode with random weights.

    Raises
    ------
    ConfigurationError
        It has fewer outputs than the data set has classes.
    """
    if isinstance(spec, FactorySpec):
        return call_factory(spec).eval()
    classes = spec.num_classes or dataset.classes
    if classes < dataset.classes:
        raise ConfigurationError(
            f"model.num_classes = {classes} is fewer than the {dataset.classes} classes of the data set.",
            hint="Leave num_classes out to take the number of classes from the data.",
        )
    model: nn.Module = torchvision.models.get_model(
        _REGISTERED + spec.name, weights=None, quantize=False, num_classes=classes, **_SPECIAL.get(spec.name, {})
    )
    return model.eval()


def published(name: str) -> WeightsEnum:
    """Look up an entry of torchvision's by name, ``ResNet18_Weights.IMAGENET1K_V1`` for instance.

    Raises
    ------
    ConfigurationError
        There is none, or it is for a model that is already quantized.
    """
    try:
        weights = get_weight(name)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f'torchvision has no weights "{name}".', hint="Expected a name such as ResNet18_Weights.IMAGENET1K_V1."
        ) from error
    if "unquantized" in weights.meta:
        raise ConfigurationError(
            f"{name} is already quantized.", hint=f"Use the weights it was made from: {weights.meta['unquantized']}."
        )
    return weights


def load_weights(weights: WeightsEnum) -> dict[str, Tensor]:
    """Load published weights, without auxiliary heads, from torch.hub's folder; they are downloaded on first use.

    Raises
    ------
    InputError
        They cannot be downloaded, or the file is broken.
    """
    try:
        # The file's name carries the first digits of its SHA-256, which torch.hub compares after a download.
        state = with_retries(
            lambda: weights.get_state_dict(progress=False, check_hash=True, weights_only=True, map_location="cpu")
        )
    except Exception as error:  # a file that was cut short makes torch's unpickler fail in any way
        raise InputError(
            f"{weights} could not be loaded from {weights.url}: {error}.",
            hint="Try again with a network; or put the file into the folder checkpoints/ under $TORCH_HOME/hub, or "
            'fetch it yourself and use checkpoint.kind = "uri".',
            transient=is_transient(error),
        ) from error
    return {key: tensor for key, tensor in state.items() if not key.startswith(_AUXILIARY)}


def preprocessing(workload: ImageWorkload, data: Pictures) -> Preprocessing:
    """What ``[data.transforms]`` asks for.

    ``crop`` defaults to ``image_size`` and ``resize`` to ``crop``. The preset "weights" takes everything from the
    published weights of ``[checkpoint]``, except for sizes that the file sets itself.

    Raises
    ------
    ConfigurationError
        The preset is asked for and the checkpoint is not one of torchvision's or has no such preset, or the crop is
        larger than what is left after resizing.
    """
    settings = data.transforms
    side = settings.crop or data.image_size
    given = Preprocessing(side, side, settings.mean, settings.std, settings.interpolation)
    chosen = _preset(workload) if settings.preset == "weights" else given
    chosen = replace(chosen, resize=settings.resize or chosen.resize, crop=settings.crop or chosen.crop)
    if chosen.crop > chosen.resize:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms crops {chosen.crop} pixels out of {chosen.resize}.',
            hint="Make resize at least as large as crop.",
        )
    if len(chosen.mean) != 3 or len(chosen.std) != 3 or min(chosen.std) <= 0:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms needs three means and three standard deviations above 0.'
        )
    return chosen


def _preset(workload: ImageWorkload) -> Preprocessing:
    checkpoint = workload.checkpoint
    name = getattr(checkpoint, "weights", "")
    if not name:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms.preset = "weights" needs checkpoint.kind = '
            f'"torchvision-weights", and it is "{checkpoint.kind}".',
            hint="Set resize, crop, mean and std in [data.transforms] instead.",
        )
    preset = preset_of(published(name))
    if preset is None:
        raise ConfigurationError(
            f'Workload "{workload.name}": {name} is not an image classifier.',
            hint="Choose weights of a classification model.",
        )
    return preset


def preset_of(weights: WeightsEnum) -> Preprocessing | None:
    """Return the transforms that torchvision publishes with weights; None if they are not a classifier's."""
    preset = weights.transforms()
    if not hasattr(preset, "crop_size"):
        return None
    return Preprocessing(
        preset.resize_size[0], preset.crop_size[0], tuple(preset.mean), tuple(preset.std), preset.interpolation.value
    )
