"""Which size and normalization `init` chooses for pictures of all kinds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torchvision
from PIL import Image
from torch import nn

from storage.artifacts import ArtifactStore
from tasks.data.picture_sets import pictures_in
from tasks.domains.image_classification.input_size import Choice, choose_transforms, propose_keys
from tasks.job import Workspace
from tests.tasks.vision_workloads import image_workload

DECLARED = {
    "input_size": [3, 240, 240],
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
}


def with_config(**config: Any) -> nn.Module:
    """A model as timm makes it: what it was trained with stands in an attribute."""
    model = nn.Linear(1, 1)
    model.pretrained_cfg = config
    return model


def declaring(**config: Any) -> dict[str, object]:
    return {"kind": "factory", "factory": f"{__name__}:with_config", "arguments": config}


def chosen(folder: Path, sizes: Iterable[tuple[int, int]], **sections: Any) -> Choice | None:
    for index, size in enumerate(sizes):
        Image.new("L", size, index % 256).save(folder / f"{index:04}.png")
    data = {"kind": "image-folder", "uri": str(folder)}
    return choose_transforms(image_workload(data=data, **sections), pictures_in(folder))


def keys(choice: Choice | None) -> dict[str, object]:
    assert choice is not None
    return choice.keys


def test_a_few_pictures_of_other_sizes_change_nothing(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(32, 32)] * 38 + [(31, 40), (500, 300)])
    assert choice is not None
    assert (choice.keys, choice.reason) == ({"image_size": 32}, "38 of 40 images are 32 x 32")


def test_photographs_are_cropped_to_the_usual_size(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(640, 480), (300, 500), (250, 250)])
    assert keys(choice) == {"image_size": 224, "transforms": {"resize": 256}}


def test_a_model_that_says_how_it_was_trained_decides_for_photographs(tmp_path: Path) -> None:
    transforms = {"resize": 266, "mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bicubic"}
    choice = chosen(tmp_path, [(640, 480), (300, 500)], model=declaring(**DECLARED))
    assert keys(choice) == {"image_size": 240, "transforms": transforms}


def test_the_pictures_size_comes_before_the_models_which_keeps_its_normalization(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(32, 32)] * 3, model=declaring(**DECLARED))
    transforms = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bicubic"}
    assert keys(choice) == {"image_size": 32, "transforms": transforms}
    assert choice is not None
    assert choice.reason == "3 of 3 images are 32 x 32"
    fixed = chosen(tmp_path, [(32, 32)] * 3, model=declaring(**DECLARED, fixed_input_size=True))
    assert keys(fixed)["image_size"] == 240


def test_published_weights_come_before_the_pictures(tmp_path: Path) -> None:
    checkpoint = {"kind": "torchvision-weights", "weights": "EfficientNet_V2_S_Weights.IMAGENET1K_V1"}
    preset = torchvision.models.EfficientNet_V2_S_Weights.IMAGENET1K_V1.transforms()
    choice = chosen(tmp_path, [(32, 32)] * 3, checkpoint=checkpoint)
    assert preset.crop_size == preset.resize_size == [384]
    assert keys(choice) == {"image_size": 384}
    assert choice is not None
    assert "EfficientNet_V2_S_Weights.IMAGENET1K_V1" in choice.reason


@pytest.mark.parametrize(
    ("names", "numbers"),
    [(("goldfish", "tench"), (1, 0)), (("mine", "tench"), (0, 1))],
    ids=["categories", "another name"],
)
def test_published_weights_number_the_folders_that_are_named_after_their_categories(
    tmp_path: Path, names: tuple[str, str], numbers: tuple[int, int]
) -> None:
    for name in names:
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "photos" / name / "0.png")
    workload = image_workload(
        data={"kind": "image-folder", "uri": str(tmp_path / "photos")},
        model={"kind": "torchvision", "name": "resnet18"},
        checkpoint={"kind": "torchvision-weights", "weights": "ResNet18_Weights.IMAGENET1K_V1"},
    )
    classes = propose_keys(workload, Workspace(ArtifactStore(tmp_path))).sections["data"]["classes"]
    assert tuple(classes.index(name) for name in names) == numbers  # type: ignore[attr-defined]
