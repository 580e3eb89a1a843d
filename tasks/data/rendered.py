"""A labelled image set that is generated locally: randomly distorted characters in Pillow's built-in font."""

from __future__ import annotations

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms import v2

from tasks.data.pictures import FILL_ORDER, PictureWriter, Pixels, find_or_write_pictures
from tasks.data.samples import Description
from tasks.data.sections import RenderedCharacters
from tasks.job import Workspace
from tasks.outputs import intra_op_threads
from tasks.refs import DatasetRef
from tasks.sources import code_digest

# Draw characters at twice the image size, so that their edges stay smooth when the images are scaled down.
_OVERSAMPLING = 2


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
