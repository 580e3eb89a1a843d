"""Draw, or decode and resize, images; drop duplicates, and write the images as samples."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
import numpy.typing as npt
import PIL
import torch
import torchvision
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms import v2

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from storage.humanize import plural
from tasks.data.outputs import intra_op_threads
from tasks.data.samples import TARGET, ColumnWriter, Description, find_or_write
from tasks.data.sections import Pictures, RenderedCharacters
from tasks.environment.sources import code_digest
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef

Split = Literal["train", "calibration", "valid", "test"]
# The order in which splits are filled. A duplicate image is kept only in the split that is filled first, so that test
# images are never training images.
FILL_ORDER: tuple[Split, ...] = ("test", "valid", "calibration", "train")
Pixels = npt.NDArray[np.uint8]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_COLUMN = "images"
# Draw characters at twice the image size, so that their edges stay smooth when the images are scaled down.
_OVERSAMPLING = 2
# Errors that Pillow raises for damaged files, depending on the format and the damage.
_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, OverflowError, struct.error, zlib.error)


class UnreadableError(Exception):
    """An error that marks an image as unusable; the data set omits the image."""


@contextmanager
def readable() -> Iterator[None]:
    """Convert the errors of damaged files to `UnreadableError`."""
    try:
        yield
    except (Image.DecompressionBombError, *_DAMAGED) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Preprocessing:
    """Settings for resizing an image's shorter side, cropping the centre, and normalizing pixel values of 0 to 1."""

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    def pixels(self, image: Image.Image) -> Pixels:
        """Convert an image to RGB, resize and crop it; return uint8 [3, crop, crop]."""
        interpolation = v2.InterpolationMode(self.interpolation)
        with readable():
            resized = v2.functional.resize(as_rgb(image), [self.resize], interpolation, antialias=True)
        cropped = v2.functional.center_crop(v2.functional.pil_to_tensor(resized), [self.crop, self.crop])
        return np.asarray(cropped, dtype=np.uint8)


def preprocessing(data: Pictures) -> Preprocessing:
    """Return the preprocessing that ``[data]`` describes; ``resize`` defaults to the image size."""
    settings, side = data.transforms, data.image_size
    return Preprocessing(settings.resize or side, side, settings.mean, settings.std, settings.interpolation)


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB like torchvision's loader; refuse values of more than 8 bits, which Pillow would clip."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        raise UnreadableError(f"the pixels have the mode {image.mode}; convert the image to 8 bits")
    return image.convert("RGB")


def picture_size(file: Path) -> tuple[int, int]:
    """Read an image's width and height without decoding its pixels."""
    with readable(), Image.open(file, formats=FORMATS) as image:
        return image.size


def open_image(file: IO[bytes]) -> Image.Image:
    """Decode an image file completely; raise `UnreadableError` if it is damaged, or its format is not in `FORMATS`."""
    with readable():
        image = Image.open(file, formats=FORMATS)
        image.load()
    return image


class PictureWriter:
    """A writer that appends images of one `shape`, (3, H, W), to the splits in `folder`; `stack` closes its files."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], stack: ExitStack) -> None:
        self.labels: dict[Split, list[int]] = {split: [] for split in FILL_ORDER}
        self.leaked = 0  # images of other splits that were omitted because the test split contains them
        self._folder = folder
        self._split_of: dict[bytes, Split] = {}
        self._shape = shape
        self._images = {
            split: stack.enter_context(ColumnWriter(folder, split, _COLUMN, "|u1", shape)) for split in FILL_ORDER
        }

    def add(self, split: Split, pixels: Pixels, label: int) -> bool:
        """Append an image unless a split already contains the same pixels; return whether the image was new."""
        digest = hashlib.sha256(np.ascontiguousarray(pixels).data).digest()
        if digest in self._split_of:
            self.leaked += self._split_of[digest] == "test" != split
            return False
        self._split_of[digest] = split
        self._images[split].append(pixels[None])
        self.labels[split].append(label)
        return True

    def notes(self) -> tuple[str, ...]:
        """Return a note about training images that were left out because the test split contains them."""
        images = plural(self.leaked, "training image")
        return (f"left out {images} that the test split also contains",) if self.leaked else ()

    def finish(self, description: Description) -> Description:
        """Write the labels, and return the data set's completed description; refuse an empty split."""
        counts: dict[str, int] = {split: len(labels) for split, labels in self.labels.items()}
        if empty := [split for split, count in counts.items() if not count]:
            found = "; ".join([f"No images remain for these splits: {', '.join(empty)}", *self.notes()])
            raise InputError(
                f"{found}. Images found: {counts}.",
                hint="Provide more images, or make the other splits smaller in [data].",
            )
        for split, labels in self.labels.items():
            np.save(self._folder / f"{split}.{TARGET}.npy", np.array(labels, dtype="<i8"))
        return description.model_copy(update={"splits": counts, "inputs": (_COLUMN,), "sample_shape": self._shape})


def find_or_write_pictures(
    store: ArtifactStore,
    made_from: Mapping[str, object],
    shape: tuple[int, int, int],
    fill: Callable[[PictureWriter], Description],
) -> DatasetRef:
    """Find the data set that `made_from` identifies, or create it; `fill` adds images and returns a description."""

    def write(folder: Path) -> Description:
        with ExitStack() as stack:
            writer = PictureWriter(folder, shape, stack)
            return writer.finish(fill(writer))

    return find_or_write(store, made_from, write)


def prepare_rendered(data: RenderedCharacters, workspace: Workspace) -> DatasetRef:
    """Draw distinct images with alternating classes."""
    made_from = {
        "data": data.model_dump(mode="json"),
        "libraries": {module.__name__: module.__version__ for module in (PIL, torch, torchvision, np)},
        "code": code_digest(__name__),
    }

    def fill(writer: PictureWriter) -> Description:
        sizes = data.model_dump(include={"train", "calibration", "valid", "test"})
        total, done = sum(sizes.values()), 0
        with intra_op_threads(1):  # the images are so small that a second thread would slow down the work
            glyphs = [glyph(character, data.image_size) for character in data.characters]
            for number, split in enumerate(FILL_ORDER):
                rng, added = np.random.default_rng([data.seed, number]), 0
                while added < sizes[split]:
                    label = added % len(glyphs)
                    is_new = writer.add(split, draw(glyphs[label], data.image_size, rng), label)
                    added, done = added + is_new, done + is_new
                    workspace.progress(done, total, "images")
        return Description(splits={}, classes=tuple(data.characters), mean=(0.5,) * 3, std=(0.25,) * 3)

    return find_or_write_pictures(workspace.store, made_from, (3, data.image_size, data.image_size), fill)


def glyph(character: str, side: int) -> torch.Tensor:
    """Draw a white character in the middle of a black square; return float32 [1, S, S] with values from 0 to 1."""
    canvas = _OVERSAMPLING * side
    image = Image.new("L", (canvas, canvas))
    font = ImageFont.load_default(size=round(0.8 * canvas))
    ImageDraw.Draw(image).text(
        (canvas / 2, canvas / 2), character, fill=255, font=font, anchor="mm", stroke_width=max(1, canvas // 40)
    )
    pixels: torch.Tensor = v2.functional.pil_to_tensor(image)
    return pixels.float() / 255


def draw(shape: torch.Tensor, side: int, rng: np.random.Generator) -> Pixels:
    """Turn a glyph, float32 [1, S, S], into an image, uint8 [3, side, side]."""
    canvas = shape.shape[-1]
    moved = v2.functional.affine(
        shape,
        angle=float(rng.uniform(-20, 20)),
        translate=[float(offset) for offset in rng.uniform(-0.1, 0.1, 2) * canvas],
        scale=float(rng.uniform(0.75, 1.15)),
        shear=[float(degrees) for degrees in rng.uniform(-12, 12, 2)],
        interpolation=v2.InterpolationMode.BILINEAR,
    )
    mask = v2.functional.resize(moved, [side, side], antialias=True).numpy()
    paper = rng.uniform(0.1, 0.9) + rng.uniform(-0.1, 0.1, (3, 1, 1))
    ink = paper + rng.uniform(0.35, 0.8) * (-1 if paper.mean() > 0.5 else 1) + rng.uniform(-0.1, 0.1, (3, 1, 1))
    slope = rng.uniform(-0.15, 0.15, 2)
    ramp = np.linspace(-1, 1, side)
    light = slope[0] * ramp[:, None] + slope[1] * ramp[None, :]
    picture = paper + mask * (ink - paper) + light + rng.normal(0, rng.uniform(0.02, 0.12), (3, side, side))
    return np.asarray((picture.clip(0, 1) * 255).round(), dtype=np.uint8)
