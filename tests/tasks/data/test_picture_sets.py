import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data import picture_sets
from tasks.data.picture_sets import find_layout, stratified_order
from tasks.data.samples import load_samples, read_description
from tasks.run.stages import prepare
from tasks.values.job import Workspace
from tests.tasks.vision_workloads import image_workload

SPLITS = ("train", "calibration", "valid", "test")
labels = st.lists(st.integers(0, 4), min_size=1, max_size=200)


def pictures(folder: Path, classes=("cat", "dog"), each=20, seed=0) -> Path:
    """Write coloured noise, a different picture for each name."""
    rng = np.random.default_rng([seed, *folder.name.encode()])
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(each):
            pixels = rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index:02}.png")
    return folder


def prepared(uri, store, **data):
    settings = {"kind": "image-folder", "uri": str(uri), "image_size": 8, "calibration": 6, **data}
    return prepare(Workspace(store), image_workload(data=settings))


def digests(dataset, store):
    return {
        split: [
            hashlib.sha256(image.numpy().tobytes()).digest() for image in load_samples(dataset, split, store)["images"]
        ]
        for split in SPLITS
    }


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "store")


def test_one_folder_per_class_is_split_in_proportion_and_without_overlap(tmp_path, store):
    dataset = prepared(pictures(tmp_path / "pets"), store)

    assert dataset.splits == {"test": 8, "valid": 4, "calibration": 6, "train": 22}
    assert read_description(dataset, store).classes == ("cat", "dog")
    every = [digest for split in digests(dataset, store).values() for digest in split]
    assert len(set(every)) == 40
    assert load_samples(dataset, "test", store).target.bincount().tolist() == [4, 4]


def test_the_owners_split_is_kept(tmp_path, store):
    root = tmp_path / "pets"
    for part, each in (("train", 15), ("val", 4), ("test", 5)):
        pictures(root / part, each=each)

    dataset = prepared(root, store)

    assert dataset.splits == {"test": 10, "valid": 8, "calibration": 6, "train": 24}


@pytest.mark.slow
def test_a_test_image_that_is_also_among_the_training_images_is_measured_on_and_not_trained_on(tmp_path, store):
    root = tmp_path / "pets"
    pictures(root / "train", each=15)
    pictures(root / "test", each=5)
    for file in (root / "test" / "cat").iterdir():
        (root / "train" / "cat" / f"copy-{file.name}").write_bytes(file.read_bytes())

    dataset = prepared(root, store)
    splits = digests(dataset, store)

    assert len(splits["test"]) == 10
    assert not set(splits["test"]) & {digest for split in SPLITS[:3] for digest in splits[split]}
    assert dataset.notes == ("left out 5 training images that the test split also contains",)


@pytest.mark.slow
def test_an_archive_gives_the_same_images_as_its_folder(tmp_path, store):
    folder = pictures(tmp_path / "pets")
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for file in sorted(folder.rglob("*.png")):
            archive.write(file, file.relative_to(folder.parent))

    from_archive, from_folder = prepared(tmp_path / "pets.zip", store), prepared(folder, store)

    assert from_archive.splits == from_folder.splits
    for split in SPLITS:
        archived, plain = (load_samples(dataset, split, store) for dataset in (from_archive, from_folder))
        assert torch.equal(archived["images"], plain["images"])


def test_images_that_cannot_be_read_are_left_out_and_counted(tmp_path, store, monkeypatch):
    folder = pictures(tmp_path / "pets")
    (folder / "cat" / "00.png").write_bytes(b"no picture")
    whole = (folder / "dog" / "03.png").read_bytes()
    (folder / "dog" / "03.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"2 of 40 images cannot be read.*cat/00\.png"):
        prepared(folder, store)

    monkeypatch.setattr(picture_sets, "_MOST_UNREADABLE", 0.1)
    dataset = prepared(folder, store)

    assert dataset.skipped == 2
    assert sum(dataset.splits.values()) == 38


def test_a_folder_without_classes_is_refused_with_the_layouts(tmp_path):
    pictures(tmp_path / "pets", classes=("cat",))

    with pytest.raises(InputError, match=r"fewer than two folders.*Arrange images as <class>/<image>"):
        find_layout(tmp_path)


@given(labels, st.integers(0, 2**32 - 1))
def test_it_is_a_permutation_and_the_same_for_a_seed(labels, seed):
    order = stratified_order(labels, seed)

    assert sorted(order) == list(range(len(labels)))
    assert np.array_equal(order, stratified_order(labels, seed))


@given(labels, st.integers(0, 100), st.floats(0, 1))
def test_every_prefix_contains_each_class_in_proportion(labels, seed, share):
    ordered = np.asarray(labels)[stratified_order(labels, seed)]
    cut = round(share * len(labels))

    for label in set(labels):
        expected = cut * labels.count(label) / len(labels)
        # One of each class may be on the wrong side of the cut, and moves the cut by as many places.
        assert abs((ordered[:cut] == label).sum() - expected) <= 1 + len(set(labels))
