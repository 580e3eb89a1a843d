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
from tasks.domains.image_classification import input_size
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
TORCHVISION = {"kind": "torchvision", "name": "resnet18"}


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


@pytest.mark.parametrize("side", [28, 32, 96, 224])
def test_squares_of_one_size_keep_it(tmp_path: Path, side: int) -> None:
    choice = chosen(tmp_path, [(side, side)] * 3, model=TORCHVISION)
    assert keys(choice) == {"image_size": side}
    assert choice is not None
    assert choice.reason == f"all 3 images are {side} x {side}"


def test_a_few_pictures_of_other_sizes_change_nothing(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(32, 32)] * 38 + [(31, 40), (500, 300)])
    assert choice is not None
    assert (choice.keys, choice.reason) == ({"image_size": 32}, "38 of 40 images are 32 x 32")


@pytest.mark.parametrize(
    ("sizes", "side"),
    [
        ([(30, 60), (45, 40), (90, 50)], 32),
        ([(96, 128)] * 3, 96),
        ([(100, 130), (150, 110), (200, 190)], 96),
        ([(5, 5), (6, 9), (4, 7)], 32),
    ],
)
def test_other_small_pictures_are_brought_to_a_multiple_of_32_near_their_median(
    tmp_path: Path, sizes: list[tuple[int, int]], side: int
) -> None:
    choice = chosen(tmp_path, sizes)
    assert keys(choice) == {"image_size": side}
    assert choice is not None
    assert "nearest multiple of 32" in choice.reason


@pytest.mark.parametrize(
    ("model", "size", "resize"),
    [("resnet18", 224, 256), ("inception_v3", 299, 342), (None, 224, 256)],
)
def test_photographs_are_cropped_as_for_the_published_weights_of_the_model(
    tmp_path: Path, model: str | None, size: int, resize: int
) -> None:
    sections = {"model": {"kind": "torchvision", "name": model}} if model else {}
    choice = chosen(tmp_path, [(640, 480), (300, 500), (250, 250)], **sections)
    assert keys(choice) == {"image_size": size, "transforms": {"resize": resize}}


def test_a_model_that_says_how_it_was_trained_decides_for_photographs(tmp_path: Path) -> None:
    transforms = {"resize": 266, "mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bicubic"}
    choice = chosen(tmp_path, [(640, 480), (300, 500)], model=declaring(**DECLARED))
    assert keys(choice) == {"image_size": 240, "transforms": transforms}


def test_the_pictures_size_comes_before_the_models_which_keeps_its_normalization(tmp_path: Path) -> None:
    choice = chosen(tmp_path, [(32, 32)] * 3, model=declaring(**DECLARED))
    transforms = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bicubic"}
    assert keys(choice) == {"image_size": 32, "transforms": transforms}
    assert choice is not None
    assert choice.reason == "all 3 images are 32 x 32; the model's pretrained_cfg specifies 240"
    fixed = chosen(tmp_path, [(32, 32)] * 3, model=declaring(**DECLARED, fixed_input_size=True))
    assert keys(fixed)["image_size"] == 240


@pytest.mark.parametrize("config", [{}, {"input_size": 224}, {"input_size": [3, 0, 0]}, {"hidden_size": 64}])
@pytest.mark.slow
def test_an_attribute_of_that_name_with_something_else_in_it_says_nothing(
    tmp_path: Path, config: dict[str, object]
) -> None:
    assert keys(chosen(tmp_path, [(32, 32)] * 3, model=declaring(**config))) == {"image_size": 32}


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"kind": "torchvision-weights", "weights": "EfficientNet_V2_S_Weights.IMAGENET1K_V1"},
        {"kind": "uri", "uri": "weights/efficientnet_v2_s-dd5fe13b.pth"},
    ],
)
def test_published_weights_come_before_the_pictures(tmp_path: Path, checkpoint: dict[str, str]) -> None:
    preset = torchvision.models.EfficientNet_V2_S_Weights.IMAGENET1K_V1.transforms()
    choice = chosen(tmp_path, [(32, 32)] * 3, checkpoint=checkpoint)
    assert preset.crop_size == preset.resize_size == [384]
    assert keys(choice) == {"image_size": 384}
    assert choice is not None
    assert "EfficientNet_V2_S_Weights.IMAGENET1K_V1" in choice.reason
    assert choice.reason.endswith("; all 3 images are 32 x 32")


def test_damaged_pictures_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert chosen(tmp_path, []) is None
    assert keys(chosen(tmp_path, [(32, 32)])) == {"image_size": 32}


def test_of_many_pictures_some_are_opened_from_all_over_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_size, "_OPENED", 10)
    choice = chosen(tmp_path, [(32, 32)] * 15 + [(64, 64)] * 10)
    assert keys(choice) == {"image_size": 32}
    same = chosen(tmp_path, [(48, 48)] * 25)
    assert same is not None
    assert same.reason == "all 9 sampled images are 48 x 48"


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
