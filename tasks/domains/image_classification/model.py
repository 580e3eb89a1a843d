"""Image classifiers: torchvision's quantizable models by name, and the user's own by factory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torchvision
from torch import Tensor, nn
from torchvision.models import quantization

from storage.errors import ConfigurationError
from tasks.domains.factory import call_factory
from tasks.domains.image_classification.images import load_images
from tasks.domains.image_classification.sections import FactorySpec, TorchvisionSpec

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef
    from tasks.workload.workload import Workload

_REGISTERED = "quantized_"
# GoogLeNet and Inception v3: their auxiliary heads matter only in training and are not quantized, and their published
# weights expect images normalized anew, which changes nothing for weights that are trained here.
_SPECIAL = {
    "googlenet": {"aux_logits": False, "transform_input": True, "init_weights": True},
    "inception_v3": {"aux_logits": False, "transform_input": True, "init_weights": True},
}


def model_names() -> list[str]:
    """Names of torchvision's quantizable models, as this installation has them."""
    return [name.removeprefix(_REGISTERED) for name in torchvision.models.list_models(module=quantization)]


def build_vision(spec: Model, dataset: DatasetRef) -> nn.Module:
    """Build the float model in evaluation mode with random weights.

    Raises
    ------
    ConfigurationError
        torchvision has no quantizable model of that name, the model has fewer outputs than the data set has classes,
        or the factory is wrong.
    """
    match spec:
        case TorchvisionSpec():
            model = _torchvision_model(spec, dataset)
        case FactorySpec():
            model = call_factory(spec)
        case _:
            raise TypeError(f"{spec.kind} is no kind of image classifier")
    return model.eval()


def _torchvision_model(spec: TorchvisionSpec, dataset: DatasetRef) -> nn.Module:
    if spec.name not in model_names():
        raise ConfigurationError(
            f'torchvision has no quantizable model "{spec.name}".', hint=f"Expected one of: {', '.join(model_names())}."
        )
    classes = spec.num_classes or dataset.classes
    if classes < dataset.classes:
        raise ConfigurationError(
            f"model.num_classes = {classes} is fewer than the {dataset.classes} classes of the data set.",
            hint="Leave num_classes out to take the number of classes from the data.",
        )
    model: nn.Module = torchvision.models.get_model(
        _REGISTERED + spec.name, weights=None, quantize=False, num_classes=classes, **_SPECIAL.get(spec.name, {})
    )
    return model


def example_images(workload: Workload, dataset: DatasetRef, store: ArtifactStore, batch_size: int) -> dict[str, Tensor]:
    """The first images of the test split, repeated where it is smaller than the batch.

    Returns
    -------
    dict
        ``images``: float32 [B, 3, H, W], normalized.
    """
    split = load_images(dataset, "test", store)
    images, _ = next(split.batches(batch_size))
    repeats = -(-batch_size // len(images))
    return {"images": images.repeat(repeats, 1, 1, 1)[:batch_size].contiguous()}
