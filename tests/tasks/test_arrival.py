"""What a preview says of quality: int8 that spoils a model is found with its layer; without cause nothing is said."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.artifacts import ArtifactStore, artifacts_in
from storage.root import StoreRoot
from tasks.arrival import _loss_of
from tasks.data.evaluation import Quality
from tasks.job import Workspace
from tasks.results import CandidatePreview
from tasks.runtimes.base import CandidateFiles
from tasks.stages import preview
from tasks.workload import Workload
from tests.tasks.domains.custom.own import own
from tests.tasks.outliers import write_networks
from tests.tasks.pipeline import build, evaluate, job_of

FOUND = "static-int8/torchscript", "static-int8/onnxruntime"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_networks(tmp_path_factory.mktemp("arrival"))


@pytest.fixture
def folder(weights: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(weights, tmp_path / "model"))


def workload(folder: Path, **changed: Any) -> Workload:
    sections: dict[str, Any] = {
        "data": {"kind": "factory", "factory": "arrival_net:read"},
        "model": {"kind": "factory", "factory": "arrival_net:Net"},
        "recipe": [
            {"name": "float", "method": "none"},
            {"name": "static-int8", "method": "static", "runtimes": ["torchscript", "onnxruntime"]},
        ],
    }
    return own(folder, **sections | changed)


def previewed(folder: Path, **changed: Any) -> dict[str, CandidatePreview]:
    found = preview(Workspace(ArtifactStore(folder / "store")), workload(folder, **changed))
    assert not found.problems
    assert (found.metric, found.is_percentage) == ("accuracy", True)
    return {each.candidate: each for each in found.candidates}


@pytest.mark.slow
def test_a_candidate_that_outliers_spoil_is_named_with_the_layer_behind_them(folder: Path) -> None:
    found = previewed(folder, checkpoint={"kind": "uri", "uri": str(folder / "planted.pth")})
    assert found["float/eager"].loss is None
    for name in FOUND:
        loss = found[name].loss
        assert loss is not None
        assert loss.share > 0.3
        assert loss.samples == 256
        assert loss.layers[0] == "third"
        assert loss.exclude == loss.layers
        assert len(loss.layers) == 3
        assert loss.share_left is not None
        assert loss.share_left < 0.01
    assert [found[name].loss.ranks_for for name in FOUND] == ["", "onnxruntime"]  # type: ignore[union-attr]


@pytest.mark.slow
def test_nothing_is_said_of_a_good_model_and_nothing_of_a_night_is_left(folder: Path) -> None:
    good = {"kind": "uri", "uri": str(folder / "good.pth")}
    assert all(each.loss is None for each in previewed(folder, checkpoint=good).values())
    store = ArtifactStore(folder / "store")
    job = job_of(workload(folder, checkpoint=good), store)
    made = artifacts_in(StoreRoot.of(folder / "store"))
    assert [each.digest for each in made if each.kind == "samples"] == [job.dataset.digest]
    recipes = [CandidateFiles(store.path(each.kind, each.digest), {}) for each in made if each.kind == "candidate"]
    asked = job.workload.recipe_named("static-int8").content()
    assert recipes
    assert all(each.recipe().content() != asked for each in recipes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uri", "seeded"])
def test_a_float_model_no_better_than_a_constant_answer_is_reported_unless_its_weights_are_drawn(
    folder: Path, kind: str
) -> None:
    state = torch.load(folder / "good.pth", weights_only=True)
    torch.save({name: torch.zeros_like(tensor) for name, tensor in state.items()}, folder / "zeros.pth")
    changes = {"uri": str(folder / "zeros.pth")} if kind == "uri" else {}
    recipe = [{"name": "float", "method": "none"}]
    asked = workload(folder, checkpoint={"kind": kind} | changes, recipe=recipe)
    store = ArtifactStore(folder / "store")
    warned = preview(Workspace(store), asked).data_notes
    assert [note.partition(", so")[0] for note in warned if "constant" in note] == [
        "the float model's accuracy is 12.5 on 600 samples, no better than the best constant answer (12.5)"
    ] * (kind == "uri")
    job = job_of(asked, store)
    evaluation = evaluate(job, build(job, "float", "eager", store), store)
    assert evaluation.constant_quality == (12.5 if kind == "uri" else None)


@pytest.mark.slow
def test_nothing_is_said_of_weights_that_are_drawn(folder: Path) -> None:
    # The module is born with the planted weights, of which a preview cannot know that they are trained.
    model = {"kind": "factory", "factory": "arrival_net:Net", "arguments": {"weights": str(folder / "planted.pth")}}
    found = previewed(folder, model=model, checkpoint={"kind": "seeded"})
    assert all(each.loss is None for each in found.values())


@pytest.mark.parametrize(
    ("rows", "lost", "gained", "is_certain"),
    [(20, 2, 0, False), (256, 5, 2, False), (256, 12, 2, True), (1, 1, 0, False)],
)
def test_a_loss_must_be_more_than_chance_explains(rows: int, lost: int, gained: int, is_certain: bool) -> None:
    right = torch.full((rows,), 100.0)
    right[lost : lost + gained] = 0
    after = right.clone()
    after[:lost], after[lost : lost + gained] = 0, 100
    before, changed = (
        Quality("top1", each.mean().item(), True, {}, {"quality": each}, rows, contributions="right-or-wrong")
        for each in (right, after)
    )
    share, least = _loss_of(before, changed)
    assert (least > 0) is is_certain
    if rows > 1:
        assert share == pytest.approx((lost - gained) / (rows - gained))


def test_a_metric_of_which_less_is_better_is_lost_by_growing() -> None:
    torch.manual_seed(0)
    errors = torch.rand(200)
    before, after = (
        Quality("mse", each.mean().item(), False, {}, {"quality": each}, 200) for each in (errors, errors * 1.1)
    )
    assert _loss_of(before, after)[0] == pytest.approx(0.1, abs=1e-5)
    assert _loss_of(before, after)[1] > 0
    assert _loss_of(after, before)[0] < 0
