from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from pydantic import ValidationError

from storage.artifacts import ArtifactStore
from tasks.data import pictures
from tasks.domains import domain_named
from tests.tasks.data.test_picture_sets import pictures as photos
from tests.tasks.domains.image_classification.networks import SMALL
from tests.tasks.pipeline import job_of
from tests.tasks.vision_workloads import image_workload


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ({"resize": 8}, "less than image_size; set it to 9 or more"),
        ({"mean": [0.5]}, "mean"),
        ({"std": [0] * 3}, "std"),
    ],
)
def test_transforms_that_cannot_be_are_refused(transforms: dict[str, object], message: str) -> None:
    data = {"kind": "image-folder", "uri": "photos", "image_size": 9, "transforms": transforms}
    with pytest.raises(ValidationError, match=message):
        image_workload(data=data)


def test_a_picture_that_is_found_damaged_only_once_it_is_converted_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:500])
    geometry = pictures.Preprocessing(8, 8, (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(pictures.UnreadableError, match="OSError"):
        geometry.pixels(Image.open(path))


def test_a_bundle_gets_the_transforms_that_were_applied(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    data = {"kind": "image-folder", "uri": str(photos(tmp_path / "pets")), "image_size": 16, "calibration": 6}
    workload = image_workload(
        data=data | {"transforms": {"resize": 18, "std": [0.5] * 3}},
        model=SMALL | {"arguments": {"classes": 2}},
        checkpoint={"kind": "seeded"},
    )
    job = job_of(workload, store)
    resources = domain_named(workload.domain).write_resources(job, store, tmp_path)
    assert resources == {"preprocessing": "preprocessing.json"}
    found = json.loads((tmp_path / "preprocessing.json").read_text())
    assert (found["height"], found["classes"], found["std"]) == (16, ["cat", "dog"], [0.5] * 3)
    assert found["transforms"] == {
        "resize": 18,
        "crop": 16,
        "interpolation": "bilinear",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.5] * 3,
    }
