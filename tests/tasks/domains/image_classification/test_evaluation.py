import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from storage.errors import MeasurementError, QuantizationError
from tasks.domains.image_classification.evaluation import classify
from tasks.domains.image_classification.images import ImageSplit, example_images
from tasks.job import Workspace, silent
from tasks.stages import build, compare, evaluate, obtain
from tests.tasks.domains.image_classification.networks import SMALL
from tests.tasks.vision_workloads import RENDERED, image_workload, rendered


class Knowing:
    """Reads the class from the first pixel, as far as `classes` goes; `broken` images give NaN."""

    def __init__(self, classes: int, broken: int = -1) -> None:
        self.classes, self.broken = classes, broken
        self.largest_batch = 0

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.largest_batch = max(self.largest_batch, len(images))
        values = (images[:, 0, 0, 0] * 255).round().long()
        logits = -(values[:, None] - torch.arange(self.classes)).abs().float()
        logits[values == self.broken] = torch.nan
        return logits


def split_of(values, labels) -> ImageSplit:
    images = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous()
    return ImageSplit(images, torch.tensor(labels), (0.0,) * 3, (1.0,) * 3)


def test_a_prediction_is_the_most_likely_class_and_top5_counts_the_five_most_likely():
    metrics, samples = classify(Knowing(9), split_of([0, 4, 4, 4], [0, 4, 6, 7]), 2, silent)

    assert samples["prediction"].tolist() == [0, 4, 4, 4]
    assert samples["quality"].tolist() == [100, 100, 0, 0]
    assert metrics == {"top1": 50, "top5": 75}


def test_few_classes_have_fewer_than_five():
    metrics, _ = classify(Knowing(3), split_of([0, 1], [2, 2]), 8, silent)

    assert metrics == {"top1": 0, "top5": 100}


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.slow
def test_the_batch_bounds_what_is_in_memory_and_changes_nothing(batch_size):
    model = Knowing(9)

    _, samples = classify(model, split_of(range(7), range(7)), batch_size, silent)

    assert samples["prediction"].tolist() == list(range(7))
    assert model.largest_batch <= batch_size


def test_progress_counts_the_images():
    told = []

    classify(Knowing(9), split_of(range(7), range(7)), 3, lambda done, total, unit="": told.append((done, total, unit)))

    assert told == [(3, 7, "images"), (6, 7, "images"), (7, 7, "images")]


def test_logits_that_are_not_finite_fail_the_candidate():
    with pytest.raises(MeasurementError, match="NaN or infinite"):
        classify(Knowing(9, broken=4), split_of(range(7), range(7)), 2, silent)


def test_too_few_logits_are_reported():
    with pytest.raises(MeasurementError, match="3 logits for 9 classes"):
        classify(Knowing(3), split_of([0, 8], [0, 8]), 2, silent)


@pytest.mark.parametrize("form", [lambda logits: (logits, logits.sum()), lambda logits: [logits]])
def test_the_logits_are_the_first_of_several_outputs(form):
    _, samples = classify(lambda images: form(Knowing(2)(images)), split_of([0, 1], [0, 1]), 2, silent)

    assert samples["prediction"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("form", "shape"),
    [(lambda logits: logits[:, :, None, None], r"\[2, 2, 1, 1\]"), (lambda logits: logits.flatten(), r"\[4\]")],
)
def test_logits_over_which_labels_would_broadcast_are_refused(form, shape):
    with pytest.raises(MeasurementError, match=rf"logits of shape {shape}.*Flatten"):
        classify(lambda images: form(Knowing(2)(images)), split_of([0, 1], [0, 1]), 2, silent)


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (lambda logits: {"logits": logits}, "a dict"),
        (lambda logits: (logits, None), "a tuple that holds a NoneType"),
        (lambda logits: (), "a tuple that holds nothing"),
        (lambda logits: None, "a NoneType"),
    ],
)
@pytest.mark.slow
def test_what_is_not_a_tensor_is_refused(form, what):
    with pytest.raises(QuantizationError, match=rf"returns {what};.*forward return the logits"):
        classify(lambda images: form(Knowing(2)(images)), split_of([0, 1], [0, 1]), 2, silent)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Float and statically quantized small network, evaluated eagerly."""
    workload = image_workload(
        data={**RENDERED, "test": 40},
        model=SMALL,
        checkpoint={"kind": "seeded", "seed": 0},
        recipe=[{"name": "float", "method": "none"}, {"name": "static-int8", "method": "static"}],
    )
    dataset, store = rendered(tmp_path_factory.mktemp("store"), test=40)
    workspace = Workspace(store)
    job = obtain(workspace, workload, dataset)
    results = [evaluate(workspace, job, build(workspace, job, recipe, "eager")) for recipe in workload.recipe]
    return dataset, store, results


def test_top1_is_the_mean_of_the_samples_and_top5_of_three_classes_is_all(evaluated):
    _, store, results = evaluated

    for result in results:
        samples = load_file(store.path("outputs", result.outputs.digest) / "samples.safetensors")
        assert (samples["quality"].dtype, samples["prediction"].dtype) == (torch.float32, torch.int64)
        assert set(samples["quality"].tolist()) <= {0.0, 100.0}
        assert result.quality == result.metrics["top1"] == pytest.approx(samples["quality"].mean().item())
        assert result.metrics["top5"] == 100
        assert (result.quality_metric, result.higher_is_better, result.samples) == ("top1", True, 40)


def test_the_golden_input_is_what_is_timed(evaluated):
    dataset, store, results = evaluated

    golden = load_file(store.path("outputs", results[0].outputs.digest) / "golden.safetensors")

    assert torch.equal(golden["input.images"], example_images(dataset, store, 1)["images"])
    assert golden["output.0"].shape == (1, 3)


def test_float_and_int8_are_compared_on_the_same_images(evaluated):
    _, store, (before, after) = evaluated

    [comparison] = compare(Workspace(store), before, [after])

    assert comparison.quality_difference == pytest.approx(after.quality - before.quality)
    assert comparison.quality_difference_low <= comparison.quality_difference <= comparison.quality_difference_high
    assert comparison.agreement > 0.8


@pytest.mark.slow
def test_a_candidate_differs_from_itself_by_nothing(evaluated):
    _, store, (before, _) = evaluated

    [comparison] = compare(Workspace(store), before, [before])

    assert (comparison.quality_difference_low, comparison.quality_difference_high) == (0, 0)
    assert comparison.agreement == 1
    assert np.isclose(comparison.quality_difference, 0)
