"""What an evaluation keeps, on the bare LSTM."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.evaluate import quality_of
from tasks.extensions import DOMAINS
from tasks.job import Job, Workspace
from tasks.outputs import tensors_of
from tasks.quantize.spec import spec_of
from tasks.runtimes.base import Opened
from tasks.tensor_files import GOLDEN, Golden
from tasks.workload import Workload, read_workload
from tests.tasks.pipeline import build, evaluate, example_inputs, job_of, opened
from tests.tasks.quantize.conftest import IMAGES

_WORKLOAD = Path(__file__).parents[2] / "flows" / "workloads" / "lstm-demo.toml"


@pytest.mark.slow
def test_the_same_outputs_are_written_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    candidates = [build(job, recipe.name, "eager", store) for recipe in job.workload.recipe]
    first, other = (evaluate(job, candidate, store) for candidate in candidates)
    assert evaluate(job, candidates[0], store) == first
    assert other.outputs != first.outputs
    golden = Golden.read(store.path(first.outputs.kind, first.outputs.digest) / GOLDEN)
    assert list(golden.inputs) == ["inputs", "h", "c"]
    assert len(golden.outputs) == 3


def test_a_failure_names_the_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MeasurementError("it computes NaN", hint="Look at it.")

    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    candidate = build(job, "float", "eager", store)
    monkeypatch.setattr(type(DOMAINS[job.workload.domain]), "evaluate", fail)
    with pytest.raises(MeasurementError, match=r'Recipe "float" \(eager\) of workload "lstm-demo": it computes NaN'):
        evaluate(job, candidate, store)


RECIPES = [
    {"name": "float", "method": "none"},
    {"name": "static", "method": "static", "calibration_batches": 1, "calibration_batch_size": 8},
    {"name": "int8", "method": "dynamic", "modules": ["Linear"]},
    {"name": "float16", "method": "dynamic", "modules": ["Linear"], "dtype": "float16"},
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job[Workload], ArtifactStore]:
    store = ArtifactStore(tmp_path_factory.mktemp("images"))
    return job_of(Workload.model_validate({**IMAGES, "recipe": RECIPES}), store), store


@pytest.mark.parametrize("recipe", [recipe["name"] for recipe in RECIPES])
@pytest.mark.slow
def test_a_method_says_whether_what_a_row_gives_depends_on_its_neighbours(
    images: tuple[Job[Workload], ArtifactStore], recipe: str
) -> None:
    job, store = images
    model = opened(build(job, recipe, "eager", store), store)
    row, other = example_inputs(job.workload, job.dataset, store, batch_size=2)["images"].split(1)
    with torch.inference_mode():
        (alone,) = tensors_of(model(row))
        (beside,) = tensors_of(model(torch.cat([row, 20 * other])))
    named = job.workload.recipe_named(recipe)
    coupled = not torch.allclose(alone[0], beside[0], rtol=1e-4, atol=1e-5)
    assert spec_of(named).couples_rows == coupled


def test_images_are_evaluated_one_by_one_where_they_would_share_ranges(
    images: tuple[Job[Workload], ArtifactStore],
) -> None:
    job, store = images
    for recipe, expected in (("float", {16}), ("int8", {16, 1})):
        model, sizes = opened(build(job, recipe, "eager", store), store), set[int]()

        def call(images: Tensor, model: Opened = model, sizes: set[int] = sizes) -> object:
            sizes.add(len(images))
            return model(images)

        quality, batched = quality_of(job, call, Workspace(store), apart=recipe == "int8")
        assert sizes == expected
        assert (quality.mode, batched.mode) == ("rows apart" if recipe == "int8" else "plain", "plain")
        assert quality.samples.keys() == batched.samples.keys() == {"quality", "prediction"}
