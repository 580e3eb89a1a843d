"""Pictures: decoded with care, brought to the pixels that a data set keeps, and written as samples, none twice."""

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
# In the order in which splits are filled. A picture that occurs twice stays in the first of them, so that none is both
# measured on and trained on.
FILL_ORDER: tuple[Split, ...] = ("test", "valid", "calibration", "train")
Pixels = npt.NDArray[np.uint8]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A few kilobytes may unfold into gigabytes; a 64-megapixel picture is a quarter of a gigabyte while it is resized.
MAX_PIXELS = 64_000_000
_COLUMN = "images"
# What Pillow raises for damaged files, depending on the format and the place of the damage.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, OverflowError, struct.error, zlib.error)


class UnreadableError(Exception):
    """A picture cannot be used; the data set goes on without it."""


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (Image.DecompressionBombError, *_DAMAGED) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


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
        with _readable():
            resized = v2.functional.resize(image.convert("RGB"), [self.resize], interpolation, antialias=True)
        cropped = v2.functional.center_crop(v2.functional.pil_to_tensor(resized), [self.crop, self.crop])
        return np.asarray(cropped, dtype=np.uint8)


def picture_size(file: Path) -> tuple[int, int]:
    """Read a picture's width and height without decoding it.

    Raises
    ------
    UnreadableError
        It is damaged, or of another format than :data:`FORMATS`.
    """
    with _readable(), Image.open(file, formats=FORMATS) as image:
        return image.size


def open_image(file: IO[bytes]) -> Image.Image:
    """Decode a picture wholly.

    Raises
    ------
    UnreadableError
        It is damaged, of another format than :data:`FORMATS`, or has more than :data:`MAX_PIXELS` pixels.
    """
    with _readable():
        image = Image.open(file, formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise UnreadableError(f"{image.width} x {image.height} is more than {MAX_PIXELS} pixels")
        image.load()
    return image


class PictureWriter:
    """Appends pictures of `shape`, (3, H, W), to the splits in `folder`; `stack` closes the files."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], stack: ExitStack) -> None:
        self.labels: dict[Split, list[int]] = {split: [] for split in FILL_ORDER}
        # Pictures left out because the same pixels are in a split already: by that split, and the one they were for.
        self.repeated: Counter[tuple[Split, Split]] = Counter()
        self._folder = folder
        self._split_of: dict[bytes, Split] = {}
        self._shape = shape
        self._images = {
            split: stack.enter_context(ColumnWriter(folder, split, _COLUMN, "|u1", shape)) for split in FILL_ORDER
        }

    def add(self, split: Split, pixels: Pixels, label: int) -> bool:
        """Append a picture unless the same pixels are in any split already; return whether it was new.

        Raises
        ------
        ValueError
            The pixels are not uint8 of this data set's shape.
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
        """Say how many pictures for other splits were left out because they are test pictures."""
        count = sum(count for (kept, wanted), count in self.repeated.items() if kept == "test" != wanted)
        were = "was left out because it is" if count == 1 else "were left out because they are"
        return (f"{plural(count, 'training picture')} {were} in the test split too",) if count else ()

    def finish(self, described: Description) -> Description:
        """Write the labels, and complete what is known of the data set.

        Raises
        ------
        InputError
            A split came out empty.
        """
        counts: dict[str, int] = {split: len(labels) for split, labels in self.labels.items()}
        if empty := [split for split, count in counts.items() if not count]:
            lost = f"{', '.join(empty)} (found: {counts})"
            if notes := self.notes():
                raise InputError(
                    f"{'; '.join(notes)}. No image is left for: {lost}.",
                    hint="Remove the test pictures from the training part, or provide other training pictures.",
                )
            raise InputError(
                f"The data set leaves no image for: {lost}.",
                hint="Provide more images, or ask for smaller other splits in [data].",
            )
        for split, labels in self.labels.items():
            np.save(self._folder / f"{split}.{TARGET}.npy", np.array(labels, dtype="<i8"))
        changes = {"splits": counts, "inputs": (_COLUMN,), "sample_shape": self._shape}
        return described.model_copy(update=changes | {"duplicates": self.repeated.total()})


def find_or_draw(
    store: ArtifactStore,
    made_from: Mapping[str, object],
    shape: tuple[int, int, int],
    fill: Callable[[PictureWriter], Description],
) -> DatasetRef:
    """Find the data set that `made_from` decides, or let `fill` add every picture and describe what it knows."""

    def write(folder: Path) -> Description:
        with ExitStack() as stack:
            writer = PictureWriter(folder, shape, stack)
            return writer.finish(fill(writer))

    return find_or_write(store, made_from, write)
