"""Pictures: decoded with care, and brought to the pixels that a data set keeps."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image
from torchvision.transforms import v2

Pixels = npt.NDArray[np.uint8]
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
