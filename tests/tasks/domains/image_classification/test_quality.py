"""What an evaluation of an image classifier keeps, and comparisons of it."""

import pytest
import torch
from safetensors.torch import load_file

from tasks.job import Workspace
from tasks.stages import build, compare, evaluate, obtain
from tests.tasks.domains.image_classification.networks import SMALL
from tests.tasks.vision_workloads import RENDERED, image_workload, rendered


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
    return store, results


def test_top1_is_the_mean_of_the_samples_and_top5_of_three_classes_is_all(evaluated):
    store, results = evaluated

    for result in results:
        samples = load_file(store.path("outputs", result.outputs.digest) / "samples.safetensors")
        assert (samples["quality"].dtype, samples["prediction"].dtype) == (torch.float32, torch.int64)
        assert set(samples["quality"].tolist()) <= {0.0, 100.0}
        assert result.quality == result.metrics["top1"] == pytest.approx(samples["quality"].mean().item())
        assert result.metrics["top5"] == 100
        assert (result.quality_metric, result.higher_is_better, result.samples) == ("top1", True, 40)


@pytest.mark.slow
def test_float_and_int8_are_compared_on_the_same_images(evaluated):
    store, (before, after) = evaluated

    [comparison] = compare(Workspace(store), before, [after])

    assert comparison.quality_difference == pytest.approx(after.quality - before.quality)
    assert comparison.quality_difference_low <= comparison.quality_difference <= comparison.quality_difference_high
    assert comparison.agreement > 0.8
