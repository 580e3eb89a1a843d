"""Which size and normalization `init` chooses for pictures of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import nn

from storage.artifacts import ArtifactStore
from tasks.domains.image_classification.network import propose_keys
from tasks.values.job import Workspace
from tests.tasks.vision_workloads import image_workload

DECLARED = {
    "input_size": [3, 240, 240],
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.25, 0.25, 0.25],
}
AS_DECLARED = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "interpolation": "bicubic"}


def with_config(**config: Any) -> nn.Module:
    """A model as timm makes it: what it was trained with stands in an attribute."""
    model = nn.Linear(1, 1)
    model.pretrained_cfg = config
    return model


def declaring(**config: Any) -> dict[str, object]:
    return {"model": {"kind": "factory", "factory": f"{__name__}:with_config", "arguments": config}}


WEIGHTS = "EfficientNet_V2_S_Weights.IMAGENET1K_V1"
PHOTOGRAPHS, SQUARES = [(640, 480), (300, 500), (250, 250)], [(32, 32)] * 38 + [(31, 40), (500, 300)]


@pytest.mark.parametrize(
    ("sizes", "sections", "size", "transforms", "reason"),
    [
        (SQUARES, {}, 32, None, "38 of 40 images are 32 x 32"),
        (PHOTOGRAPHS, {}, 224, {"resize": 256}, "the usual size"),
        (PHOTOGRAPHS, declaring(**DECLARED), 240, {"resize": 266} | AS_DECLARED, "the model's pretrained_cfg"),
        (SQUARES, declaring(**DECLARED), 32, AS_DECLARED, "38 of 40 images are 32 x 32"),
        (
            SQUARES, declaring(**DECLARED, fixed_input_size=True), 240, {"resize": 266} | AS_DECLARED,
            "the model's pretrained_cfg",
        ),
        (
            SQUARES, {"checkpoint": {"kind": "torchvision-weights", "weights": WEIGHTS}}, 384, None,
            f"the transforms of {WEIGHTS}",
        ),
    ],
)  # fmt: skip
def test_the_first_rule_that_applies_decides(
    tmp_path: Path, sizes: list[tuple[int, int]], sections: Any, size: int, transforms: Any, reason: str
) -> None:
    for index, shape in enumerate(sizes):
        (tmp_path / str(index % 2)).mkdir(exist_ok=True)
        Image.new("L", shape, index).save(tmp_path / str(index % 2) / f"{index}.png")
    workload = image_workload(data={"kind": "image-folder", "uri": str(tmp_path)}, **sections)
    proposal = propose_keys(workload, Workspace(ArtifactStore(tmp_path / "store")))
    assert proposal.sections["data"]["image_size"] == size
    assert proposal.sections["data"].get("transforms") == transforms
    assert proposal.reasons["data.image_size"] == reason


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
