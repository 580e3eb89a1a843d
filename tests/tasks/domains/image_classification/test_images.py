from pathlib import Path

import numpy as np
import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import InputError, StoreError
from tasks.domains.image_classification.images import (
    Description,
    ImageSplit,
    example_images,
    load_images,
    normalize,
    read_description,
    training_batches,
)
from tasks.domains.image_classification.pictures import FILL_ORDER, find_or_write
from tasks.refs import DatasetRef
from tests.tasks.vision_workloads import rendered

SHAPE = (3, 4, 5)


def picture(value: int) -> np.ndarray:
    return np.full(SHAPE, value, dtype=np.uint8)


def planted(root: Path, train=5) -> tuple[DatasetRef, ArtifactStore]:
    """`train` training pictures whose value is their label, and one picture in every other split."""

    def fill(writer):
        for label in range(train):
            writer.add("train", picture(label), label)
        for offset, split in enumerate(FILL_ORDER[:3]):
            writer.add(split, picture(200 + offset), 0)
        return Description(classes=("a", "b"), mean=(0.5,) * 3, std=(0.25,) * 3, skipped=("broken.png",))

    store = ArtifactStore(root)
    return find_or_write(store, {}, SHAPE, fill), store


@pytest.mark.slow
def test_what_was_written_is_read_back_mapped_and_in_order(tmp_path):
    dataset, store = planted(tmp_path)

    split = load_images(dataset, "train", store)

    assert split.images.dtype == torch.uint8
    assert split.images.shape == (5, *SHAPE)
    assert split.images[:, 0, 0, 0].tolist() == split.labels.tolist() == [0, 1, 2, 3, 4]
    assert dataset.splits == {"test": 1, "valid": 1, "calibration": 1, "train": 5}
    assert (dataset.classes, dataset.skipped) == (2, 1)
    assert read_description(dataset, store).skipped == ("broken.png",)


def test_writing_into_what_was_read_does_not_reach_the_store(tmp_path):
    dataset, store = planted(tmp_path)

    load_images(dataset, "train", store).images.fill_(7)

    assert load_images(dataset, "train", store).images[0].max() == 0


def test_normalization_is_per_channel_in_float32():
    images = torch.tensor([[[[0]], [[255]], [[51]]]], dtype=torch.uint8)

    normalized = normalize(images, (0.0, 0.5, 0.2), (1.0, 0.5, 0.1))

    assert normalized.dtype == torch.float32
    assert torch.allclose(normalized.flatten(), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 9])
def test_batches_cover_every_sample_once(tmp_path, batch_size):
    dataset, store = planted(tmp_path)

    batches = list(load_images(dataset, "train", store).batches(batch_size))

    assert max(len(labels) for _, labels in batches) <= batch_size
    assert torch.cat([labels for _, labels in batches]).tolist() == [0, 1, 2, 3, 4]


def test_indices_choose_and_order_the_samples(tmp_path):
    dataset, store = planted(tmp_path)

    [(images, labels)] = load_images(dataset, "train", store).batches(8, torch.tensor([3, 1]))

    assert labels.tolist() == [3, 1]
    assert torch.allclose(images[:, 0, 0, 0], (torch.tensor([3, 1]) / 255 - 0.5) / 0.25)


def test_a_data_set_that_is_gone_is_named(tmp_path):
    dataset, _ = planted(tmp_path / "a")

    with pytest.raises(StoreError, match="no images artifact"):
        load_images(dataset, "test", ArtifactStore(tmp_path / "b"))


@pytest.mark.slow
def test_an_epoch_is_shuffled_by_its_generator_alone(tmp_path):
    dataset, store = rendered(tmp_path)

    def epoch(generator):
        return torch.cat([labels for _, labels in training_batches(dataset, store, 8, generator)]).tolist()

    generator = torch.Generator().manual_seed(1)
    first, second = epoch(generator), epoch(generator)

    assert first != second
    assert first == epoch(torch.Generator().manual_seed(1))
    assert sorted(first) == sorted(second) == [0] * 10 + [1] * 10 + [2] * 10


def test_augmentation_only_shifts(tmp_path):
    dataset, store = rendered(tmp_path, image_size=32)
    split = load_images(dataset, "train", store)
    known = {normalize(image[None], split.mean, split.std)[0, :, 4:-4, 4:-4].sum().item() for image in split.images}

    images, _ = next(training_batches(dataset, store, 30, torch.Generator().manual_seed(0)))

    # A shift of up to two pixels: some window of each picture's inside is a known picture's middle.
    for image in images:
        windows = [image[:, 4 + y : 28 + y, 4 + x : 28 + x].sum().item() for y in range(-2, 3) for x in range(-2, 3)]
        assert any(abs(window - total) < 0.05 for window in windows for total in known)


def test_a_last_batch_of_one_is_left_out_of_training(tmp_path):
    dataset, store = planted(tmp_path, train=5)

    sizes = [len(labels) for _, labels in training_batches(dataset, store, 2, torch.Generator())]

    assert sizes == [2, 2]


@pytest.mark.parametrize(("train", "batch_size"), [(1, 2), (5, 1)])
def test_an_epoch_without_a_step_is_refused(tmp_path, train, batch_size):
    dataset, store = planted(tmp_path, train=train)

    with pytest.raises(InputError, match=f"{train} training images in batches of {batch_size}: there is no batch"):
        next(training_batches(dataset, store, batch_size, torch.Generator()))


def test_a_split_knows_its_length():
    images, labels = torch.zeros(2, 3, 1, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)

    split = ImageSplit(images, labels, (0,) * 3, (1,) * 3)

    assert len(split) == 2


@pytest.mark.parametrize("batch_size", [1, 4, 40])
@pytest.mark.slow
def test_example_images_are_the_first_of_the_test_split_repeated_if_need_be(tmp_path, batch_size):
    dataset, store = rendered(tmp_path)

    examples = example_images(dataset, store, batch_size)

    assert list(examples) == ["images"]
    assert examples["images"].shape == (batch_size, 3, 16, 16)
    assert examples["images"].is_contiguous()
    if batch_size == 40:
        assert torch.equal(examples["images"][0], examples["images"][18])
