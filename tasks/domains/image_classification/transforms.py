"""From a picture as it was found to the pixels that a data set keeps."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np
from PIL import Image
from torchvision.models import WeightsEnum
from torchvision.transforms import v2

from storage.errors import ConfigurationError
from tasks.domains.image_classification.images import Pixels
from tasks.domains.image_classification.model import published
from tasks.domains.image_classification.sections import ImageWorkload, Pictures, TorchvisionWeights

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A few kilobytes may unfold into gigabytes; a 64-megapixel picture is a quarter of a gigabyte while it is resized.
MAX_PIXELS = 64_000_000

# What Pillow raises for damaged files, depending on the format and the place of the damage.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, OverflowError, struct.error, zlib.error)


class UnreadableError(Exception):
    """A picture cannot be used; the data set goes on without it."""


@dataclass(frozen=True)
class Preprocessing:
    """Shorter side to `resize`, then the middle `crop` x `crop`; `mean` and `std` normalize values in 0…1 later."""

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

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
        interpolation = v2.InterpolationMode(self.interpolation)
        try:
            resized = v2.functional.resize(image.convert("RGB"), [self.resize], interpolation, antialias=True)
        except _DAMAGED as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from error
        cropped = v2.functional.center_crop(v2.functional.pil_to_tensor(resized), [self.crop, self.crop])
        return np.asarray(cropped, dtype=np.uint8)


def preprocessing(workload: ImageWorkload) -> Preprocessing:
    """What ``[data.transforms]`` asks for.

    ``crop`` defaults to ``image_size`` and ``resize`` to ``crop``. The preset "weights" takes everything from the
    published weights of ``[checkpoint]``, except for sizes that the file sets itself.

    Raises
    ------
    ConfigurationError
        The preset is asked for and the checkpoint is not one of torchvision's or has no such preset, or the crop is
        larger than what is left after resizing.
    """
    data = cast(Pictures, workload.data)
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
    if not isinstance(checkpoint, TorchvisionWeights):
        raise ConfigurationError(
            f'Workload "{workload.name}": data.transforms.preset = "weights" needs checkpoint.kind = '
            f'"torchvision-weights", and it is "{checkpoint.kind}".',
            hint="Set resize, crop, mean and std in [data.transforms] instead.",
        )
    preset = preset_of(published(checkpoint.weights))
    if preset is None:
        raise ConfigurationError(
            f'Workload "{workload.name}": {checkpoint.weights} is not an image classifier.',
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


def picture_size(file: Path) -> tuple[int, int]:
    """Read a picture's width and height without decoding it.

    Raises
    ------
    UnreadableError
        It is damaged, or of another format than :data:`FORMATS`.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            return image.size
    except (Image.DecompressionBombError, *_DAMAGED) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


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
    except (Image.DecompressionBombError, *_DAMAGED) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error
    return image
