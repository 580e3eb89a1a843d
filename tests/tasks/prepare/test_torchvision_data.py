import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, InputError
from tasks.prepare import prepare
from tasks.prepare.images import class_names, load_images
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
    return prepare(image_workload(data=settings), store), store


def test_a_grey_data_set_keeps_its_own_test_part_and_becomes_rgb(tmp_path):
    dataset, store = prepared(fashion(tmp_path), name="FashionMNIST")

    assert dataset.splits == {"test": 12, "valid": 4, "calibration": 10, "train": 26}
    assert class_names(dataset, store)[:2] == ("T-shirt/top", "Trouser")
    images = load_images(dataset, "test", store).images
    original = torchvision.datasets.FashionMNIST(tmp_path, train=False).data
    assert {image[0].numpy().tobytes() for image in images} == {image.numpy().tobytes() for image in original}
    assert (images[:, 0] == images[:, 2]).all()


def test_fewer_test_samples_hold_every_class(tmp_path):
    dataset, store = prepared(fashion(tmp_path, test=50), name="FashionMNIST", max_test=10)

    assert dataset.splits["test"] == 10
    assert len(load_images(dataset, "test", store).labels.unique()) == 10


@pytest.mark.slow
def test_a_data_set_without_a_test_part_is_split_here(tmp_path):
    dataset, _ = prepared(tmp_path, name="FakeData", image_size=8, max_test=None)

    assert dataset.splits == {"test": 100, "valid": 100, "calibration": 10, "train": 790}


def test_it_is_found_again_and_changes_with_its_content(tmp_path):
    first, _ = prepared(fashion(tmp_path / "a"), name="FashionMNIST")
    again, _ = prepared(tmp_path / "a", name="FashionMNIST")
    other, _ = prepared(fashion(tmp_path / "b", train=41), name="FashionMNIST")

    assert again == first
    assert other.digest != first.digest


def test_what_is_not_there_is_not_downloaded_without_being_asked_for(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read from .*download = true"):
        prepared(tmp_path, name="CIFAR10")


@pytest.mark.parametrize(
    ("name", "message"),
    [("FashionMINST", "Did you mean FashionMNIST"), ("os", "no data set"), ("VOCDetection", "cannot be read|no split")],
)
def test_a_wrong_name_is_refused(tmp_path, name, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        prepared(tmp_path, name=name)


def test_a_data_set_that_has_no_download_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot download"):
        prepared(tmp_path, name="FakeData", download=True)
