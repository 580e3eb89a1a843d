"""From a picture as it was found to the pixels that a data set keeps."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import Image
from torchvision.models import get_weight
from torchvision.transforms import v2

from storage.errors import ConfigurationError
from tasks.domains.image_classification.sections import ImageFolder, TorchvisionDataset, TorchvisionWeights
from tasks.domains.image_classification.writer import Pixels
from tasks.workload.workload import Workload

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A few kilobytes may unfold into gigabytes; a 64-megapixel picture is a quarter of a gigabyte while it is resized.
MAX_PIXELS = 64_000_000

# What Pillow raises for damaged files, depending on the format and the place of the damage.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, OverflowError, struct.error, zlib.error)


class UnreadableError(Exception):
    """One picture cannot be used; the data set goes on without it."""


@dataclass(frozen=True)
class Preprocessing:
    """Shorter side to `resize`, then the middle `crop` x `crop`; `mean` and `std` normalize values in 0…1 later."""

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of each sample: (3, H, W)."""
        return 3, self.crop, self.crop

    def pixels(self, image: Image.Image) -> Pixels:
        """Bring a picture of any mode and size to RGB, uint8 [3, crop, crop]; a grey one gets three equal channels.

        Raises
        ------
        UnreadableError
            It is damaged, or so long and thin that it would have more than :data:`MAX_PIXELS` pixels once resized.
        """
        short, long = sorted(image.size)
        if short < 1 or self.resize * (self.resize * long // short) > MAX_PIXELS:
            raise UnreadableError(
                f"{image.width} x {image.height}, resized to {self.resize}, is more than {MAX_PIXELS} pixels"
            )
        functional = v2.functional
        interpolation = v2.InterpolationMode(self.interpolation)
        try:
            resized = functional.resize(
                image.convert("RGB"), [self.resize], interpolation=interpolation, antialias=True
            )
        except _DAMAGED as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error
        cropped = functional.center_crop(functional.pil_to_tensor(resized), [self.crop, self.crop])
        return np.asarray(cropped, dtype=np.uint8)


def preprocessing(workload: Workload) -> Preprocessing:
    """What ``[data.transforms]`` asks for.

    Without a preset, ``crop`` is ``image_size`` and ``resize`` is ``crop`` where they are left out. The preset
    "weights" takes everything from the published weights of ``[checkpoint]``, except what the file sets itself.

    Raises
    ------
    ConfigurationError
        The preset is asked for and the checkpoint is none of torchvision's, has no such preset, or the crop is larger
        than what is left after resizing.
    """
    data = workload.data
    if not isinstance(data, ImageFolder | TorchvisionDataset):
        raise TypeError(f"{data.kind} has no transforms")
    settings = data.transforms
    if settings.preset == "weights":
        preset = _weights_preset(workload)
        resize, crop = settings.resize or preset.resize_size[0], settings.crop or preset.crop_size[0]
        mean, std, interpolation = tuple(preset.mean), tuple(preset.std), preset.interpolation.value
    else:
        crop = settings.crop or data.image_size
        resize, mean, std, interpolation = settings.resize or crop, settings.mean, settings.std, "bilinear"
    if crop > resize:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms crops {crop} pixels out of {resize}.',
            hint="Make resize at least as large as crop.",
        )
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms needs three means and three standard deviations above 0.'
        )
    return Preprocessing(resize, crop, mean, std, interpolation)


def _weights_preset(workload: Workload) -> Any:
    checkpoint = workload.checkpoint
    if not isinstance(checkpoint, TorchvisionWeights):
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms.preset = "weights" needs checkpoint.kind = '
            f'"torchvision-weights", and it is "{checkpoint.kind}".',
            hint="Set resize, crop, mean and std in [data.transforms] instead.",
        )
    try:
        preset = get_weight(checkpoint.weights).transforms()
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f'Workload "{workload.name}": torchvision has no weights "{checkpoint.weights}".',
            hint="Name them as in ResNet18_Weights.IMAGENET1K_V1.",
        ) from error
    if not hasattr(preset, "crop_size"):
        raise ConfigurationError(
            f'Workload "{workload.name}": {checkpoint.weights} is no image classifier.',
            hint="Choose weights of a classification model.",
        )
    return preset


def open_image(file: IO[bytes]) -> Image.Image:
    """Decode a picture wholly.

    Raises
    ------
    UnreadableError
        It is damaged, of another format than :data:`FORMATS`, or has more than :data:`MAX_PIXELS` pixels.
    """
    try:
        image = Image.open(file, formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise UnreadableError(f"{image.width} x {image.height} is more than {MAX_PIXELS} pixels")
        image.load()
    except Image.DecompressionBombError as error:
        raise UnreadableError(str(error)) from error
    except _DAMAGED as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error
    return image
