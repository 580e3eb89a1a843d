import pytest
import torch

from storage.errors import InputError, MeasurementError
from tasks.evaluate.classification import predictions
from tasks.models import build
from tasks.prepare.images import load_images
from tasks.train.classifier import train_classifier
from tests.tasks.vision_workloads import RENDERED, image_workload, rendered

DATA = {**RENDERED, "train": 240, "test": 60}


def workload(**checkpoint):
    model = {"kind": "factory", "factory": "tests.tasks.train.networks:small", "arguments": {"classes": 3}}
    settings = {"kind": "train", "epochs": 6, "batch_size": 16, "learning_rate": 0.01, **checkpoint}
    return image_workload(data=DATA, model=model, checkpoint=settings)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("store"), **DATA)


def test_it_learns_to_tell_the_characters_apart(prepared):
    dataset, store = prepared
    model = build(workload().model, dataset)
    model.load_state_dict(train_classifier(workload(), dataset, store))
    split = load_images(dataset, "test", store)

    right = predictions(model, split, 32)[:, 0] == split.labels

    assert right.float().mean() > 0.8


def test_a_seed_decides_the_weights(prepared):
    dataset, store = prepared

    first, again, other = (train_classifier(workload(epochs=1, seed=seed), dataset, store) for seed in (1, 1, 2))

    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_training_leaves_the_global_generator_and_the_threads_alone(prepared):
    dataset, store = prepared
    torch.manual_seed(3)
    threads, expected = torch.get_num_threads(), torch.rand(2)
    torch.manual_seed(3)

    train_classifier(workload(epochs=1), dataset, store)

    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == threads


def test_the_weights_are_contiguous(prepared):
    dataset, store = prepared

    assert all(tensor.is_contiguous() for tensor in train_classifier(workload(epochs=1), dataset, store).values())


def test_progress_ends_at_the_number_of_epochs(prepared):
    dataset, store = prepared
    told = []

    train_classifier(workload(epochs=2), dataset, store, lambda done, total, unit="": told.append((done, total, unit)))

    assert told[-1] == (2, 2, "epochs")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_a_rate_that_is_far_too_high_is_told(prepared):
    dataset, store = prepared

    with pytest.raises(MeasurementError, match=r"diverged.*Lower checkpoint.learning_rate"):
        train_classifier(workload(learning_rate=1e30), dataset, store)


def test_a_single_training_image_is_not_enough(prepared):
    dataset, store = prepared
    dataset = dataset.model_copy(update={"splits": {**dataset.splits, "train": 1}})

    with pytest.raises(InputError, match="has 1 training images"):
        train_classifier(workload(), dataset, store)
