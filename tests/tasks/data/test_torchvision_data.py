import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from storage import remote
from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, InputError
from tasks.data import torchvision_data
from tasks.data.samples import load_samples, read_description
from tasks.job import Workspace
from tasks.stages import prepare
from tests.storage.http_server import Site, serving
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


@pytest.mark.slow
def test_fewer_test_samples_hold_every_class(tmp_path):
    dataset, store = prepared(fashion(tmp_path, test=50), name="FashionMNIST", max_test=10)

    assert dataset.splits["test"] == 10
    assert len(load_samples(dataset, "test", store).target.unique()) == 10


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
    [
        ("FashionMINST", 'did you mean "FashionMNIST"'),
        ("os", "does not include the data set"),
        ("VOCDetection", "cannot be read|does not have a split"),
    ],
)
def test_a_wrong_name_is_refused(tmp_path, name, message):
    with pytest.raises((ConfigurationError, InputError), match=message):
        prepared(tmp_path, name=name)


def test_a_data_set_that_has_no_download_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot download"):
        prepared(tmp_path, name="FakeData", download=True)


@pytest.mark.parametrize("name", ["EMNIST", "Places365", "OxfordIIITPet", "CocoCaptions"])
def test_a_class_that_is_made_otherwise_is_named_with_the_reason(tmp_path, name):
    with pytest.raises(ConfigurationError, match=rf'cannot use torchvision\'s data set "{name}": .*(split|annFile)'):
        prepared(tmp_path, name=name)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    class NeedsMore(torchvision.datasets.VisionDataset):
        def __init__(self, root):
            raise ModuleNotFoundError("No module named 'scipy'")

    monkeypatch.setattr(torchvision.datasets, "NeedsMore", NeedsMore, raising=False)

    with pytest.raises(
        ConfigurationError, match=r'cannot use torchvision\'s data set "NeedsMore": No module named \'scipy\''
    ):
        prepared(tmp_path, name="NeedsMore")


def test_samples_in_memory_decide_the_digest_as_files_do(tmp_path):
    class InMemory:
        def __init__(self, first, label=1):
            self._samples = [(torch.full((2, 2), first, dtype=torch.uint8), label)]

        def __len__(self):
            return len(self._samples)

    file = tmp_path / "a.png"
    file.write_bytes(b"some")

    class OnDisk(InMemory):
        def __init__(self):
            self._samples = [(str(file), 1)]

    digest = torchvision_data._content(InMemory(3))
    assert torchvision_data._content(InMemory(3)) == digest
    assert torchvision_data._content(InMemory(4)) != digest
    assert torchvision_data._content(InMemory(3, label=2)) != digest
    before = torchvision_data._content(OnDisk())
    file.write_bytes(b"other")
    assert torchvision_data._content(OnDisk()) != before


def test_a_data_set_that_keeps_its_pictures_as_tensors_is_read(tmp_path, monkeypatch):
    (tmp_path / "fer2013").mkdir()
    rng = np.random.default_rng(0)
    lines = [
        f"{index % 7},{' '.join(map(str, rng.integers(0, 256, 48 * 48)))},{'Training' if index < 40 else 'PublicTest'}"
        for index in range(52)
    ]
    (tmp_path / "fer2013" / "fer2013.csv").write_text("\n".join(["emotion,pixels,Usage", *lines]))
    monkeypatch.setitem(torchvision.datasets.FER2013._RESOURCES, "fer", ("fer2013.csv", None))

    dataset, _ = prepared(tmp_path, name="FER2013")

    assert dataset.splits == {"test": 12, "valid": 4, "calibration": 10, "train": 26}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A mirror that has one of FashionMNIST's files; the others are there already."""
    file = fashion(tmp_path) / "FashionMNIST" / "raw" / "train-labels-idx1-ubyte"
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    resources = [(f"{file.name}.gz", hashlib.md5(packed, usedforsecurity=False).hexdigest())]
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", resources)
    monkeypatch.setattr(remote, "backoff_s", lambda attempt, first_s: 0.0)
    with serving(Site(packed)) as running:
        monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", [f"{running.url}/"])
        yield running


@pytest.mark.slow
def test_a_mirror_that_is_busy_is_asked_again(site, tmp_path):
    site.statuses = [503, 503]
    dataset, _ = prepared(tmp_path, name="FashionMNIST", download=True)
    assert dataset.splits["train"] == 26


@pytest.mark.slow
def test_a_mirror_that_stays_busy_is_worth_another_try_later(site, tmp_path):
    site.statuses = [503] * 99
    with pytest.raises(InputError, match="503") as failure:
        prepared(tmp_path, name="FashionMNIST", download=True)
    assert failure.value.transient
    assert len(site.asked) == 5


def test_a_mirror_that_lacks_the_file_is_asked_once(site, tmp_path):
    site.statuses = [404] * 99
    with pytest.raises(InputError, match="404") as failure:
        prepared(tmp_path, name="FashionMNIST", download=True)
    assert not failure.value.transient
    assert len(site.asked) == 1


def test_a_file_with_another_checksum_is_refused(site, tmp_path):
    site.content += b"and more"
    with pytest.raises(InputError, match="corrupted") as failure:
        prepared(tmp_path, name="FashionMNIST", download=True)
    assert not failure.value.transient


def test_a_data_sets_own_validation_part_is_kept(tmp_path):
    """DTD has the splits train, val and test."""
    folder, rng = tmp_path / "dtd" / "dtd", np.random.default_rng(0)
    (folder / "labels").mkdir(parents=True)
    for split, each in (("train", 20), ("val", 4), ("test", 3)):
        names = [f"{texture}/{split}{index}.png" for texture in ("banded", "dotted") for index in range(each)]
        (folder / "labels" / f"{split}1.txt").write_text("\n".join(names))
        for name in names:
            (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / "images" / name)

    dataset, _ = prepared(tmp_path, name="DTD")

    assert dataset.splits == {"test": 6, "valid": 8, "calibration": 10, "train": 30}
