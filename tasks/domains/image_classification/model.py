"""Image classifiers: torchvision's quantizable models and published weights by name, and the user's own by factory."""

from __future__ import annotations

import torchvision
from torch import Tensor, nn
from torchvision.models import WeightsEnum, get_weight

from storage.errors import ConfigurationError, InputError
from storage.transient import is_transient
from storage.urllib_retries import with_retries
from tasks.domains.image_classification.sections import ClassifierSpec
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
