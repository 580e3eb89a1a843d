from contextlib import ExitStack
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.pictures import (
    PictureWriter,
    UnreadableError,
    as_rgb,
    find_or_write_pictures,
    open_image,
)
from tasks.data.samples import Description

SHAPE = (3, 4, 5)
DESCRIPTION = Description(splits={}, classes=("a", "b"), mean=(0.5,) * 3, std=(0.25,) * 3)


def picture(value: int) -> np.ndarray:
    return np.full(SHAPE, value, dtype=np.uint8)


@pytest.fixture
def writer(tmp_path):
    with ExitStack() as stack:
        yield PictureWriter(tmp_path, SHAPE, stack)


def test_a_picture_that_occurs_again_is_left_out_whichever_split_it_is_for(writer):
    assert writer.add("test", picture(1), 0)
    assert not writer.add("train", picture(1), 0)
    assert not writer.add("test", picture(1), 0)

    assert writer.leaked == 1
    assert writer.labels == {"test": [0], "valid": [], "calibration": [], "train": []}


@pytest.mark.slow
def test_an_empty_split_is_refused_and_nothing_is_published(tmp_path):
    def fill(writer):
        writer.add("test", picture(1), 0)
        return DESCRIPTION

    with pytest.raises(InputError, match="No images remain for these splits: valid, calibration, train"):
        find_or_write_pictures(ArtifactStore(tmp_path), {}, SHAPE, fill)

    assert not list(tmp_path.rglob("*.npy"))


def reopened(image: Image.Image, format: str) -> Image.Image:
    stream = BytesIO()
    image.save(stream, format)
    stream.seek(0)
    return open_image(stream)


@pytest.mark.parametrize(("dtype", "mode"), [("<i4", "I"), ("<f4", "F"), ("<u2", "I;16")])
def test_pixels_of_more_than_eight_bits_are_refused(dtype: str, mode: str) -> None:
    image = reopened(Image.fromarray(np.arange(16).reshape(4, 4).astype(dtype)), "TIFF")
    with pytest.raises(UnreadableError, match=f"the pixels have the mode {mode}; convert the image to 8 bits"):
        as_rgb(image)


@pytest.mark.parametrize(
    ("mode", "format", "colour", "expected"),
    [
        ("LA", "PNG", (7, 0), [7, 7, 7]),
        ("RGBA", "PNG", (1, 2, 3, 0), [1, 2, 3]),
        ("CMYK", "TIFF", (255, 0, 0, 0), [0, 255, 255]),
        ("P", "PNG", "red", [255, 0, 0]),
    ],
)
def test_other_modes_are_converted_as_torchvision_does(
    mode: str, format: str, colour: object, expected: list[int]
) -> None:
    palette = Image.new("RGB", (2, 2), "red").quantize(2) if mode == "P" else None
    image = reopened(palette or Image.new(mode, (2, 2), colour), format)  # type: ignore[arg-type]
    assert np.asarray(as_rgb(image))[0, 0].tolist() == expected
