import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.samples import load_samples, read_description
from tasks.run.stages import prepare
from tasks.values.job import Workspace
from tests.tasks.vision_workloads import image_workload


def fashion(root: Path, train=40, test=12) -> Path:
    """Write FashionMNIST's four files with random grey pictures."""
    rng = np.random.default_rng(0)
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + labels.tobytes())
    return root


def prepared(tmp_path, **data):
    settings = {"kind": "torchvision", "root": str(tmp_path), "image_size": 28, "calibration": 10, **data}
    store = ArtifactStore(tmp_path / "store")
    return prepare(Workspace(store), image_workload(data=settings)), store


def test_a_grey_data_set_keeps_its_own_test_part_and_becomes_rgb(tmp_path):
    dataset, store = prepared(fashion(tmp_path), name="FashionMNIST")

    assert dataset.splits == {"test": 12, "valid": 4, "calibration": 10, "train": 26}
    assert read_description(dataset, store).classes[:2] == ("T-shirt/top", "Trouser")
    images = load_samples(dataset, "test", store)["images"]
    original = torchvision.datasets.FashionMNIST(tmp_path, train=False).data
    assert {image[0].numpy().tobytes() for image in images} == {image.numpy().tobytes() for image in original}
    assert (images[:, 0] == images[:, 2]).all()


def test_missing_data_is_downloaded_only_on_request(tmp_path):
    with pytest.raises(NightquantError, match=r"cannot be read from .*download = true"):
        prepared(tmp_path, name="CIFAR10")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FashionMINST", 'did you mean "FashionMNIST"'),
        ("os", "does not include a data set"),
        ("FakeData", "with a training and a test part"),
        ("EMNIST", "cannot be read .*split"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(tmp_path, name, message):
    with pytest.raises(NightquantError, match=message):
        prepared(tmp_path, name=name)


def test_splits_are_selected_by_name(tmp_path):
    """DTD has the splits train, val and test."""
    folder, rng = tmp_path / "dtd" / "dtd", np.random.default_rng(0)
    (folder / "labels").mkdir(parents=True)
    for split, each in (("train", 20), ("test", 3)):
        names = [f"{texture}/{split}{index}.png" for texture in ("banded", "dotted") for index in range(each)]
        (folder / "labels" / f"{split}1.txt").write_text("\n".join(names))
        for name in names:
            (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / "images" / name)

    dataset, _ = prepared(tmp_path, name="DTD")

    assert dataset.splits == {"test": 6, "valid": 4, "calibration": 10, "train": 26}
