"""Image classifiers by every method that images know, opened by both torch runtimes, and run without this project."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.quantize.converted import find_or_convert, refuse_other
from tasks.quantize.methods import StaticRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import spec_of
from tasks.values.job import Job
from tasks.workload import Workload
from tests.tasks.pipeline import build, example_inputs, job_of, opened
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.quantize.words import call, same

STATIC = {"method": "static", "calibration_batches": 1, "calibration_batch_size": 8}
QAT = {"method": "qat", "epochs": 1, "batch_size": 16}
RECIPES: dict[str, dict[str, object]] = {
    "float": {"method": "none"},
    "float-channels-last": {"method": "none", "memory_format": "channels-last"},
    "static": STATIC,
    "static-onednn": {"engine": "onednn", **STATIC},
    "static-fbgemm": {"engine": "fbgemm", "weights": "per-tensor", **STATIC},
    "static-qnnpack": {"engine": "qnnpack", "weights": "per-tensor", **STATIC},
    "qat": QAT,
    "dynamic": {"method": "dynamic", "modules": ["Linear"]},
}


@pytest.fixture(scope="module")
def job(images_store: ArtifactStore) -> Job[Workload]:
    recipes = [{"name": name, "runtimes": ["eager", "torchscript"], **spec} for name, spec in RECIPES.items()]
    return job_of(Workload.model_validate(IMAGES | {"recipe": recipes}), images_store)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.slow
def test_both_runtimes_compute_the_converted_model(
    recipe: str, job: Job[Workload], images_store: ArtifactStore
) -> None:
    before = torch.backends.quantized.engine
    eager, script = (build(job, recipe, runtime, images_store) for runtime in ("eager", "torchscript"))
    assert torch.backends.quantized.engine == before
    assert build(job, recipe, "eager", images_store) == eager
    assert eager.shared == script.shared
    method = RECIPES[recipe]["method"]
    assert (eager.covered_share > 0) == (method != "none")
    inputs = example_inputs(job.workload, job.dataset, images_store, batch_size=5)
    outputs = [call(opened(candidate, images_store), inputs) for candidate in (eager, script)]
    if method == "none":
        # Frozen float TorchScript has its batch norms folded.
        assert torch.allclose(outputs[0][0], outputs[1][0], rtol=1e-3, atol=1e-4)
    else:
        assert same(*outputs)


@pytest.mark.parametrize("changed", [torch.tensor([0.0, 1.2]), torch.tensor([0.0, float("nan")]), torch.zeros(3)])
def test_a_module_with_other_outputs_is_refused(job: Job[Workload], changed: torch.Tensor) -> None:
    spec, before = spec_of(job.workload.recipe_named("static")), torch.tensor([0.0, 1.0])
    refuse_other([before], [torch.tensor([0.0, 1.01])], spec.tolerance, spec, "saving")
    with pytest.raises(QuantizationError, match="changed after saving"):
        refuse_other([before], [changed], spec.tolerance, spec, "saving")
    with pytest.raises(QuantizationError, match="changed after saving"):
        refuse_other([before], [], spec.tolerance, spec, "saving")


@pytest.mark.slow
def test_a_linear_layer_that_onednn_computes_in_a_reference_loop_is_refused(
    source_of: Callable[..., ModelSource],
) -> None:
    recipe = StaticRecipe(name="static", engine="onednn", **STATIC)
    with pytest.raises(QuantizationError, match=r"a thousand times slower.*x86"):
        find_or_convert(source_of("perceptron"), spec_of(recipe))
    # After a ReLU, the zero point is 0.
    assert find_or_convert(source_of("plain"), spec_of(recipe)).is_dir()
    assert find_or_convert(source_of("perceptron"), spec_of(recipe.model_copy(update={"engine": "x86"}))).is_dir()
