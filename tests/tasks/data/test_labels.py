"""Class numbers must not depend on which classes occur tonight, and must fit the model's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from storage.artifacts import ArtifactStore
from storage.errors import InputError, MeasurementError
from tasks.data.evaluation import check_labels
from tasks.data.picture_sets import find_layout
from tasks.data.samples import Description, load_samples
from tests.tasks.data.test_tables import prepared as table
from tests.tasks.domains.custom.own import own, write
from tests.tasks.domains.image_classification.networks import SMALL, small
from tests.tasks.pipeline import job_of
from tests.tasks.vision_workloads import image_workload

CLASSES = ["apple", "banana", "cherry"]


def folders(root: Path, *names: str, suffix: str = "png", each: int = 2) -> Path:
    """Write pictures into a folder for each name; a name that ends with a slash stays without pictures."""
    rng = np.random.default_rng(0)
    for name in names:
        folder = root / name
        folder.mkdir(parents=True)
        for index in range(0 if name.endswith("/") else each):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            with (folder / f"{index}.{suffix}").open("wb") as stream:
                Image.fromarray(pixels).save(stream, format="JPEG" if suffix.startswith("j") else "PNG")
    return root


def test_an_empty_class_folder_keeps_its_number(tmp_path: Path) -> None:
    layout = find_layout(folders(tmp_path, "apple", "banana/", "cherry"))
    assert layout.classes == tuple(CLASSES)
    assert {label for _, label in layout.files["train"]} == {0, 2}
    assert layout.notes == ('these classes have no samples: "banana"',)


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "JPEG", "apng"])
def test_every_suffix_of_a_supported_format_is_read(tmp_path: Path, suffix: str) -> None:
    folders(tmp_path, "apple", "cherry")
    folders(tmp_path, "banana", suffix=suffix)
    assert len(find_layout(tmp_path).files["train"]) == 6


def test_stated_classes_number_the_folders_and_a_new_folder_is_refused_by_name(tmp_path: Path) -> None:
    folders(tmp_path, "apple", "cherry")
    assert find_layout(tmp_path, stated=["cherry", "banana", "apple"]).classes == ("cherry", "banana", "apple")
    with pytest.raises(InputError, match=r'data\.classes lacks: "cherry" \(did you mean "cherries"'):
        find_layout(tmp_path, stated=["apple", "cherries"])


@pytest.mark.parametrize("name", ["train", "Train", "test", "val"])
def test_a_class_with_the_name_of_a_split_is_a_class(tmp_path: Path, name: str) -> None:
    assert set(find_layout(folders(tmp_path, "bus", "car", name)).classes) == {"bus", "car", name}


def test_a_folder_that_could_be_a_split_or_a_class_is_refused_until_the_classes_are_stated(tmp_path: Path) -> None:
    folders(tmp_path, "bus/city", "car/old", "train/diesel", "train/steam")
    with pytest.raises(InputError, match="could be splits or classes: train, bus, car"):
        find_layout(tmp_path)
    assert find_layout(tmp_path, stated=["bus", "car", "train"]).classes == ("bus", "car", "train")


@pytest.mark.parametrize("names", [("test/a", "test/b", "val/a", "val/b"), ("train/a", "train/b", "val/a", "valid/b")])
def test_split_folders_that_do_not_fit_together_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="Use one folder for each split"):
        find_layout(folders(tmp_path, *names))


def columns(labels: list[Any]) -> dict[str, list[Any]]:
    return {"a": list(range(len(labels))), "b": [index / 7 for index in range(len(labels))], "kind": labels}


@pytest.mark.parametrize(
    ("found", "stated", "numbers"),
    [
        (["apple", "cherry"], CLASSES, {0, 2}),
        ([1, 2, 3], ["1", "2", "3"], {0, 1, 2}),
        ([-1, 1], ["-1", "1"], {0, 1}),
        ([True, True], [], {1}),
        ([2, 3], [], {2, 3}),
    ],
)
def test_a_table_is_numbered_alike_whatever_occurs(
    tmp_path: Path, found: list[Any], stated: list[str], numbers: set[int]
) -> None:
    dataset, store = table(tmp_path, columns(found * 20), classes=stated)
    assert {int(n) for split in dataset.splits for n in load_samples(dataset, split, store).target} == numbers


@pytest.mark.parametrize(
    ("shape", "classes", "found", "message"),
    [
        ((4, 5), (), (1, 5), "labels range from 1 to 5"),
        ((4, 2), (), (-1, 1), "labels range from -1 to 1"),
        ((4, 1), (), (1, 2), "one score per row, for the class numbers 0 to 1, but the labels range from 1 to 2"),
        ((4, 3, 7), (), (0, 3), "3 logits per row, for the class numbers 0 to 2"),
        ((4, 5), ("a", "b", "c", "d"), (0, 3), '5 logits per row, but the data has 4 classes: "a", "b"'),
    ],
)
def test_labels_that_do_not_fit_the_outputs_are_refused(
    shape: tuple[int, ...], classes: tuple[str, ...], found: tuple[int, int], message: str
) -> None:
    data = Description(splits={}, classes=classes, label_range=found)
    with pytest.raises(MeasurementError, match=f"(?s){message}"):
        check_labels(torch.zeros(shape), data, named=True)


@pytest.mark.parametrize("metric", ["accuracy", "f1-macro", "auroc", "loss"])
def test_a_run_refuses_labels_that_the_model_lacks_in_any_split(tmp_path: Path, metric: str) -> None:
    write(tmp_path)
    write(
        tmp_path,
        "from own_code import *\n"
        "def from_one():\n"
        "    return {name: [(row, 0 if name == 'test' else 2) for row, _ in part] for name, part in splits().items()}",
        "labels_from_one",
    )
    data = {"kind": "factory", "factory": "labels_from_one:from_one"}
    workload = own(tmp_path, data=data, evaluate={"metric": metric})
    with pytest.raises(MeasurementError, match="2 logits per row, for the class numbers 0 to 1, but the labels range"):
        job_of(workload, ArtifactStore(tmp_path))


def test_weights_made_elsewhere_need_a_name_for_each_output_of_images(tmp_path: Path) -> None:
    folders(tmp_path / "fruit", "apple", "cherry", each=9)
    torch.save(small(3).state_dict(), tmp_path / "weights.pth")
    data = {"kind": "image-folder", "uri": str(tmp_path / "fruit"), "image_size": 16, "calibration": 2}
    sections = {"model": SMALL, "checkpoint": {"kind": "uri", "uri": str(tmp_path / "weights.pth")}}
    with pytest.raises(MeasurementError, match="3 logits per row, but the data has 2 classes"):
        job_of(image_workload(data=data, **sections), ArtifactStore(tmp_path))
    (tmp_path / "fruit" / "banana").mkdir()
    assert job_of(image_workload(data=data, **sections), ArtifactStore(tmp_path)).dataset.classes == 3
