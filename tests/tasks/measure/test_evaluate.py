"""What an evaluation keeps, on the bare LSTM."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import MeasurementError
from tasks.data.evaluation import Quality
from tasks.data.outputs import tensors_of
from tasks.data.paired import PairedDifference, bootstrap_difference, score_difference, serial_difference
from tasks.data.tensor_files import GOLDEN, SAMPLES, Golden
from tasks.domains import domain_named
from tasks.measure.evaluate import compare, compare_all, quality_of
from tasks.quantize.spec import spec_of
from tasks.runtimes.base import Opened
from tasks.values.job import Job, Workspace
from tasks.values.refs import ArtifactRef
from tasks.values.results import Contributions, Evaluation
from tasks.workload import Workload, read_workload
from tests.tasks.pipeline import build, evaluate, example_inputs, job_of, opened
from tests.tasks.quantize.conftest import IMAGES

_WORKLOAD = Path(__file__).parents[3] / "flows" / "workloads" / "lstm-demo.toml"


@pytest.mark.slow
def test_an_evaluation_is_found_again_until_its_conditions_or_outputs_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    candidate = build(job, "float", "eager", store)
    first, domain = evaluate(job, candidate, store), type(domain_named(job.workload.domain))
    calls: list[str] = []
    original = domain.evaluate

    def count(*args: Any, **settings: Any) -> Quality:
        calls.append("called")
        return original(*args, **settings)

    monkeypatch.setattr(domain, "evaluate", count)
    assert evaluate(job, candidate, store) == first
    renamed = evaluate(job, candidate.model_copy(update={"recipe": "other name"}), store)
    assert renamed == first.model_copy(update={"recipe": "other name"})
    assert not calls
    shutil.rmtree(store.path(first.outputs.kind, first.outputs.digest))
    assert evaluate(job, candidate, store) == first
    assert len(calls) == 1
    fewer = replace(job, dataset=job.dataset.model_copy(update={"at_most": 10}))
    evaluate(fewer, candidate, store)
    assert len(calls) == 2


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
def test_a_method_declares_whether_a_rows_output_depends_on_other_rows(
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

        quality, batched = quality_of(job, call, Workspace(store), singly=recipe == "int8")
        assert sizes == expected
        assert (quality.mode, batched.mode) == ("rows apart" if recipe == "int8" else "plain", "plain")
        assert quality.samples.keys() == batched.samples.keys() == {"quality", "prediction"}


Interval = Callable[[list[float], list[float]], PairedDifference]


def evaluation(
    store: ArtifactStore, recipe: str, contributions: Contributions = "independent", **samples: list[float] | list[int]
) -> Evaluation:
    digest = artifact_digest("outputs", {"recipe": recipe})
    with store.create("outputs", digest, {"recipe": recipe}) as folder:
        save_file({name: torch.tensor(values) for name, values in samples.items()}, folder / SAMPLES)
    quality = samples.get("quality", [0.0])
    return Evaluation(
        recipe=recipe,
        runtime="eager",
        quality_metric="top1",
        quality=sum(quality) / len(quality),
        higher_is_better=True,
        metrics={},
        quality_batched=sum(quality) / len(quality),
        contributions=contributions,
        samples=len(quality),
        outputs=ArtifactRef(kind="outputs", digest=digest),
    )


def test_agreement_is_the_share_of_equal_predictions(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before = evaluation(store, "float", quality=[100.0, 100.0, 0.0, 0.0], prediction=[1, 2, 3, 4])
    after = evaluation(store, "int8", quality=[100.0, 0.0, 0.0, 0.0], prediction=[1, 3, 3, 4])
    comparison = compare(before, after, store)
    assert comparison.agreement == 0.75
    assert comparison.quality_difference == -25


def test_a_quality_without_samples_has_neither_interval_nor_agreement(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before, after = (evaluation(store, name, quality=[0.0]) for name in ("one", "another"))
    assert compare(before, after, store).quality_difference_low is None, "a single sample has no interval"
    comparison = compare(evaluation(store, "float", other=[0.0]), evaluation(store, "int8", other=[0.0]), store)
    assert comparison.quality_difference == 0
    assert (comparison.quality_difference_low, comparison.quality_difference_high) == (None, None)
    assert comparison.agreement is None


@pytest.mark.slow
def test_different_samples_are_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before = evaluation(store, "float", quality=[100.0, 0.0], prediction=[1, 2])
    after = evaluation(store, "int8", quality=[100.0, 0.0, 0.0], prediction=[1, 2, 3])
    with pytest.raises(MeasurementError, match="int8/eager"):
        compare(before, after, store)


@pytest.mark.parametrize(
    ("contributions", "interval"),
    [("independent", bootstrap_difference), ("right-or-wrong", score_difference), ("serial", serial_difference)],
)
def test_the_interval_suits_the_kind_of_samples(
    tmp_path: Path, contributions: Contributions, interval: Interval
) -> None:
    store, right = ArtifactStore(tmp_path), ([100.0, 0.0] * 20, [100.0, 0.0, 100.0, 100.0] * 10)
    before, after = (
        evaluation(store, name, contributions, quality=quality)
        for name, quality in zip(("float", "int8"), right, strict=True)
    )
    comparison = compare(before, after, store)
    ends = (comparison.quality_difference_low, comparison.quality_difference_high)
    assert ends == pytest.approx(interval(*right)[1:])


def test_a_candidate_does_not_differ_from_itself_but_may_differ_from_another(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    before, after = (evaluation(store, name, "right-or-wrong", quality=[100.0] * 50) for name in ("float", "int8"))
    itself, other = compare_all(before, [before, after], Workspace(store))
    assert (itself.quality_difference_low, itself.quality_difference_high) == (0, 0)
    assert other.quality_difference == 0
    assert other.quality_difference_low is not None
    assert other.quality_difference_low < -5


def test_the_number_of_comparisons_of_each_candidate_widens_its_interval(tmp_path: Path) -> None:
    store, right = ArtifactStore(tmp_path), ([100.0, 0.0] * 20, [100.0, 0.0, 100.0, 100.0] * 10)
    before, after = (
        evaluation(store, name, "right-or-wrong", quality=quality)
        for name, quality in zip(("float", "int8"), right, strict=True)
    )
    compared = compare_all(before, [after, after], Workspace(store), [1, 4])
    for comparison, count in zip(compared, (1, 4), strict=True):
        ends = (comparison.quality_difference_low, comparison.quality_difference_high)
        assert ends == pytest.approx(score_difference(*right, comparisons=count)[1:])


@pytest.mark.slow
def test_a_candidate_is_judged_on_another_split_but_timed_with_the_same_inputs(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    job = job_of(Workload.model_validate(IMAGES), store)
    candidate = build(job, "float", "eager", store)
    dataset = job.dataset.model_copy(update={"judged_on": "train", "at_most": 24})
    usual, judged = (evaluate(each, candidate, store) for each in (job, replace(job, dataset=dataset)))
    assert (usual.samples, judged.samples) == (16, 24)
    cases = [Golden.read(store.path(each.outputs.kind, each.outputs.digest) / GOLDEN) for each in (usual, judged)]
    assert all(torch.equal(cases[0].inputs[name], cases[1].inputs[name]) for name in cases[0].inputs)
    assert build(replace(job, dataset=dataset), "float", "eager", store) == candidate
