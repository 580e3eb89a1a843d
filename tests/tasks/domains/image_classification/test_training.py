import pytest
import torch

from storage.errors import InputError, MeasurementError
from tasks.data.evaluation import evaluate_batches
from tasks.data.metrics import METRICS
from tasks.data.samples import load_samples
from tasks.domains.image_classification.domain import ImageClassification, training_batches
from tasks.domains.image_classification.network import build_vision
from tasks.values.job import Workspace
from tests.tasks.domains.image_classification import networks
from tests.tasks.vision_workloads import RENDERED, image_workload, rendered

DATA = {**RENDERED, "train": 240, "test": 60}


def workload(**checkpoint):
    settings = {"kind": "train", "epochs": 6, "batch_size": 16, "learning_rate": 0.01, **checkpoint}
    return image_workload(data=DATA, model=networks.SMALL, checkpoint=settings)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("store"), **DATA)


@pytest.mark.slow
def test_the_model_learns_to_distinguish_the_characters(prepared):
    dataset, store = prepared
    model = build_vision(workload().model, dataset)
    model.load_state_dict(ImageClassification().train(workload(), dataset, Workspace(store)))

    split = load_samples(dataset, "test", store)
    quality = evaluate_batches(model.eval(), split.batches(32), METRICS["top1"], total=len(split), singly=False)

    assert quality.value > 80


def test_a_seed_decides_the_weights(prepared):
    dataset, store = prepared

    first, again, other = (
        ImageClassification().train(workload(epochs=1, seed=seed), dataset, Workspace(store)) for seed in (1, 1, 2)
    )

    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_a_learning_rate_that_is_far_too_high_is_reported(prepared):
    dataset, store = prepared

    with pytest.raises(MeasurementError, match=r"diverged.*Lower checkpoint.learning_rate"):
        ImageClassification().train(workload(learning_rate=1e30), dataset, Workspace(store))


def test_a_single_training_image_is_not_enough(tmp_path):
    dataset, store = rendered(tmp_path, train=1)

    with pytest.raises(InputError, match=r"batch_size is 16 and the number of training images is 1\."):
        ImageClassification().train(workload(), dataset, Workspace(store))


def test_augmentation_only_shifts(tmp_path):
    dataset, store = rendered(tmp_path, image_size=32)
    split = load_samples(dataset, "train", store)
    known = {image[:, 4:-4, 4:-4].sum().item() for batch in split.batches(8) for image in batch.inputs[0]}

    (images,), _ = next(training_batches(dataset, store, 30, torch.Generator().manual_seed(0)))

    # A shift of up to two pixels: some window of each picture's inside is a known picture's middle.
    for image in images:
        windows = [image[:, 4 + y : 28 + y, 4 + x : 28 + x].sum().item() for y in range(-2, 3) for x in range(-2, 3)]
        assert any(abs(window - total) < 0.05 for window in windows for total in known)
