"""Decode and resize untrusted images, drop duplicates, and write the images as samples."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from torchvision.transforms import v2

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from storage.humanize import plural
from tasks.data.samples import TARGET, ColumnWriter, Description, find_or_write
from tasks.refs import DatasetRef

Split = Literal["train", "calibration", "valid", "test"]
# The order in which splits are filled. A duplicate image is kept only in the split that is filled first, so that test
# images are never training images.
FILL_ORDER: tuple[Split, ...] = ("test", "valid", "calibration", "train")
Pixels = npt.NDArray[np.uint8]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A file of a few kilobytes may unpack to gigabytes. Resizing a 64-megapixel image needs about 0.25 GB of memory.
MAX_PIXELS = 64_000_000
_COLUMN = "images"
# Errors that Pillow raises for damaged files, depending on the format and the damage.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, OverflowError, struct.error, zlib.error)


class UnreadableError(Exception):
    """An error that marks an image as unusable; the data set omits the image."""


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (Image.DecompressionBombError, *_DAMAGED) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Preprocessing:
    """Settings for resizing an image's shorter side, cropping the centre, and normalizing the pixel values.

    Before normalization, the pixel values range from 0 to 1.
    """

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    def pixels(self, image: Image.Image) -> Pixels:
        """Convert an image of any mode and size to RGB, uint8 [3, crop, crop]; a grayscale image gets equal channels.

        Raises
        ------
        UnreadableError
            The image is damaged, its pixel values have no fixed range, or it would have more than :data:`MAX_PIXELS`
            pixels after resizing.
        """
        short, long = sorted(image.size)
        if short < 1 or self.resize * (self.resize * long // short) > MAX_PIXELS:
            raise UnreadableError(
                f"resizing the short side of the {image.width} x {image.height} image to {self.resize} would produce "
                f"more than {MAX_PIXELS} pixels"
            )
        interpolation = v2.InterpolationMode(self.interpolation)
        with _readable():
            resized = v2.functional.resize(as_rgb(image), [self.resize], interpolation, antialias=True)
        cropped = v2.functional.center_crop(v2.functional.pil_to_tensor(resized), [self.crop, self.crop])
        return np.asarray(cropped, dtype=np.uint8)


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB like torchvision's loader, but scale 16-bit greyscale values to 8 bits.

    Pillow's ``convert`` would clip these values to 255. Palettes and CMYK are converted. Transparency, EXIF orientation
    and further frames are ignored.

    Raises
    ------
    UnreadableError
        The pixels are 32-bit integers or floats, whose range is unknown.
    """
    if (values := deep_values(image)) is not None:
        image = Image.fromarray((values >> 8).astype(np.uint8))  # as Pillow reads 16-bit colour images
    if image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise UnreadableError(f"the pixels are {kind}, whose range is unknown; convert the image to 8 or 16 bits")
    return image.convert("RGB")


def deep_values(image: Image.Image) -> npt.NDArray[np.integer] | None:
    """Return the values of a 16-bit greyscale image, which range from 0 to 65535, or ``None`` for other images."""
    # Pillow reads 16-bit PPM files as 32-bit integers, and scales their values to 16 bits.
    is_deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    return np.asarray(image) if is_deep else None


def picture_size(file: Path) -> tuple[int, int]:
    """Read an image's width and height without decoding its pixels.

    Raises
    ------
    UnreadableError
        The image is damaged, or its format is not in :data:`FORMATS`.
    """
    with _readable(), Image.open(file, formats=FORMATS) as image:
        return image.size


def open_image(file: IO[bytes]) -> Image.Image:
    """Decode an image file completely.

    Raises
    ------
    UnreadableError
        The image is damaged, has a format that is not in :data:`FORMATS`, or has more than :data:`MAX_PIXELS` pixels.
    """
    with _readable():
        image = Image.open(file, formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise UnreadableError(f"the {image.width} x {image.height} image has more than {MAX_PIXELS} pixels")
        image.load()
    return image


class PictureWriter:
    """A writer that appends images to the splits in `folder`.

    `shape` is the shape of each image, (3, H, W). Closing `stack` also closes the writer's files.
    """

    def __init__(self, folder: Path, shape: tuple[int, int, int], stack: ExitStack) -> None:
        self.labels: dict[Split, list[int]] = {split: [] for split in FILL_ORDER}
        # Numbers of omitted duplicates, keyed by the kept image's split and the duplicate's split.
        self.repeated: Counter[tuple[Split, Split]] = Counter()
        self._folder = folder
        self._split_of: dict[bytes, Split] = {}
        self._shape = shape
        self._images = {
            split: stack.enter_context(ColumnWriter(folder, split, _COLUMN, "|u1", shape)) for split in FILL_ORDER
        }

    def add(self, split: Split, pixels: Pixels, label: int) -> bool:
        """Append an image unless a split already contains the same pixels; return whether the image was new.

        Raises
        ------
        ValueError
            The pixels are not uint8, or their shape differs from the writer's shape.
        """
        digest = hashlib.sha256(np.ascontiguousarray(pixels).data).digest()
        if digest in self._split_of:
            self.repeated[self._split_of[digest], split] += 1
            return False
        self._split_of[digest] = split
        self._images[split].append(pixels[None])
        self.labels[split].append(label)
        return True

    def notes(self) -> tuple[str, ...]:
        """Return a note about training images that were left out because the test split contains them."""
        count = sum(count for (first, second), count in self.repeated.items() if first == "test" != second)
        were, them = ("was", "it") if count == 1 else ("were", "them")
        note = f"{plural(count, 'training image')} {were} left out because the test split also contains {them}"
        return (note,) if count else ()

    def finish(self, description: Description) -> Description:
        """Write the labels and return the data set's completed description.

        Raises
        ------
        InputError
            A split is empty.
        """
        counts: dict[str, int] = {split: len(labels) for split, labels in self.labels.items()}
        if empty := [split for split, count in counts.items() if not count]:
            missing = ", ".join(empty)
            notes = "".join(f"{note}. " for note in self.notes())
            hint = "Provide more images, or make the other splits smaller in [data]."
            if notes:
                hint = "Remove the test images from the training part, or provide other training images."
            raise InputError(f"{notes}No images remain for these splits: {missing}. Images found: {counts}.", hint=hint)
        for split, labels in self.labels.items():
            np.save(self._folder / f"{split}.{TARGET}.npy", np.array(labels, dtype="<i8"))
        changes = {"splits": counts, "inputs": (_COLUMN,), "sample_shape": self._shape}
        return description.model_copy(update=changes | {"duplicates": self.repeated.total()})


def find_or_write_pictures(
    store: ArtifactStore,
    made_from: Mapping[str, object],
    shape: tuple[int, int, int],
    fill: Callable[[PictureWriter], Description],
) -> DatasetRef:
    """Find the data set that `made_from` identifies, or create it with `fill`.

    `fill` adds images to the writer, and returns a description of the data set.
    """

    def write(folder: Path) -> Description:
        with ExitStack() as stack:
            writer = PictureWriter(folder, shape, stack)
            return writer.finish(fill(writer))

    return find_or_write(store, made_from, write)
