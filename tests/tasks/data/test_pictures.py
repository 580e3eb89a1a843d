import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.pictures import FILL_ORDER, PictureWriter, find_or_write_pictures
from tasks.data.samples import Description, load_samples

SHAPE = (3, 4, 5)
DESCRIPTION = Description(splits={}, classes=("a", "b"), mean=(0.5,) * 3, std=(0.25,) * 3)


def picture(value: int) -> np.ndarray:
    return np.full(SHAPE, value, dtype=np.uint8)


@pytest.fixture
def writer(tmp_path):
    with ExitStack() as stack:
        yield PictureWriter(tmp_path, SHAPE, stack)


def test_a_picture_that_occurs_again_is_left_out_whichever_split_it_is_for(writer):
    assert writer.add("test", picture(1), 0)
    assert not writer.add("train", picture(1), 0)
    assert not writer.add("test", picture(1), 0)

    assert writer.repeated == {("test", "train"): 1, ("test", "test"): 1}
    assert writer.labels == {"test": [0], "valid": [], "calibration": [], "train": []}


@pytest.mark.slow
def test_an_empty_split_is_refused_and_nothing_is_published(tmp_path):
    def fill(writer):
        writer.add("test", picture(1), 0)
        return DESCRIPTION

    with pytest.raises(InputError, match="No images remain for these splits: valid, calibration, train"):
        find_or_write_pictures(ArtifactStore(tmp_path), {}, SHAPE, fill)

    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.slow
def test_the_files_are_those_of_numpy_for_any_number_of_samples(tmp_path: Path, count):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, 9, count)

    def fill(writer):
        for number, split in enumerate(FILL_ORDER):
            for image, label in zip(images, labels, strict=True):
                writer.add(split, image ^ number, label)
        return DESCRIPTION

    store = ArtifactStore(tmp_path)
    dataset = find_or_write_pictures(store, {}, SHAPE, fill)
    np.save(tmp_path / "expected.npy", images)
    np.save(tmp_path / "labels.npy", labels)

    folder = store.path(dataset.kind, dataset.digest)
    assert (folder / "test.images.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert (folder / "test.row-target.npy").read_bytes() == (tmp_path / "labels.npy").read_bytes()
    assert load_samples(dataset, "train", store).target.tolist() == labels.tolist()


def test_what_is_found_is_not_written_again(tmp_path):
    def fill(writer):
        for number, split in enumerate(FILL_ORDER):
            writer.add(split, picture(number), 0)
        writer.add("train", picture(0), 0)
        return DESCRIPTION

    store = ArtifactStore(tmp_path)
    dataset = find_or_write_pictures(store, {"seed": 1}, SHAPE, fill)

    assert find_or_write_pictures(store, {"seed": 1}, SHAPE, lambda writer: pytest.fail("written again")) == dataset
    assert find_or_write_pictures(store, {"seed": 2}, SHAPE, fill).digest != dataset.digest
    folder = store.path(dataset.kind, dataset.digest)
    assert json.loads((folder / "samples.json").read_text())["duplicates"] == 1
