import hashlib

import pytest
import torch

from tasks.data.samples import load_samples, read_description
from tests.tasks.vision_workloads import rendered

SPLITS = ("train", "calibration", "valid", "test")


def digests(split):
    return [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in split["images"]]


def test_every_split_has_its_size_and_classes_and_no_picture_of_another_split(tmp_path):
    dataset, store = rendered(tmp_path)

    assert dataset.splits == {"train": 30, "calibration": 12, "valid": 9, "test": 18}
    assert (dataset.classes, dataset.sample_shape, dataset.skipped) == (3, (3, 16, 16), 0)
    assert read_description(dataset, store).classes == ("O", "X", "T")
    splits = [load_samples(dataset, split, store) for split in SPLITS]
    assert all(split.target.unique().tolist() == [0, 1, 2] for split in splits)
    assert len({digest for split in splits for digest in digests(split)}) == 69


@pytest.mark.slow
def test_the_same_settings_give_the_same_bytes_whatever_the_global_generator_does(tmp_path):
    first, first_store = rendered(tmp_path / "a")
    torch.manual_seed(99)
    second, second_store = rendered(tmp_path / "b")
    other, _ = rendered(tmp_path / "b", seed=1)

    assert first == second
    assert other.digest != first.digest
    assert other.calibration_digest != first.calibration_digest
    for split in SPLITS:
        assert digests(load_samples(first, split, first_store)) == digests(load_samples(second, split, second_store))
