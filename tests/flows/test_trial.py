"""What a preview says of quality: int8 that spoils a model is found; without cause nothing is said."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.execution.workers import LostError
from flows.trial import built, compared, running, undecided
from storage.artifacts import ArtifactStore, artifacts_in
from storage.root import StoreRoot
from tasks.quantize.spec import spec_of
from tasks.run.stages import evaluate, pace
from tasks.runtimes.base import CandidateFiles
from tasks.values.job import Workspace
from tasks.values.refs import ArtifactRef
from tasks.values.results import CandidatePreview, Comparison, Evaluation, Preview
from tasks.workload import Workload
from tasks.workload.gate import Gate
from tests.flows.trials import Here, tried_out
from tests.tasks.domains.custom.own import own
from tests.tasks.outliers import write_networks

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
    found = tried_out(workload(folder, **changed), Here(folder / "store"))
    assert not found.problems
    assert (found.metric, found.is_percentage) == ("accuracy", True)
    return {each.candidate: each for each in found.candidates}


@pytest.mark.slow
def test_a_good_model_has_no_warnings_and_a_night_finds_no_candidate_of_the_trials(folder: Path) -> None:
    good = {"kind": "uri", "uri": str(folder / "good.pth")}
    assert all(each.loss is None for each in previewed(folder, checkpoint=good).values())
    store = ArtifactStore(folder / "store")
    made = [each for each in artifacts_in(StoreRoot.of(folder / "store")) if each.kind == "candidate"]
    asked = spec_of(workload(folder, checkpoint=good).recipe_named("static-int8"))
    specs = [CandidateFiles(store.path(each.kind, each.digest), {}).spec() for each in made]
    assert asked.method in {spec.method for spec in specs}
    assert asked not in specs


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
    warned = tried_out(asked, Here(folder / "store")).data_notes
    assert [note.partition(", so")[0] for note in warned if "constant" in note] == [
        "the float model's accuracy is 12.5 on 600 samples, no better than the best constant answer (12.5)"
    ] * (kind == "uri")


@pytest.fixture(scope="module")
def tried(weights: Path) -> tuple[Workload, Preview]:
    """A trial before its comparisons."""
    planted = {"kind": "uri", "uri": str(weights / "planted.pth")}
    asked = workload(weights, checkpoint=planted, gate={"max_quality_drop": 0.5})
    return asked, built(asked, Here(weights / "store"))


def ended(tried: tuple[Workload, Preview], weights: Path, before: Any) -> dict[str, CandidatePreview]:
    *_, found = compared(*tried, Here(weights / "store", before))
    return {str(row.candidate): row for row in found.candidates}


@pytest.mark.slow
def test_a_candidate_that_outliers_spoil_is_named(tried: tuple[Workload, Preview], weights: Path) -> None:
    found = ended(tried, weights, None)
    assert found["float/eager"].loss is None
    for name in FOUND:
        loss = found[name].loss
        assert loss is not None
        assert loss.share > 0.3
        assert loss.after == pytest.approx(loss.before * (1 - loss.share))
        assert loss.samples == 256


@pytest.mark.slow
def test_a_candidate_that_is_too_slow_is_not_evaluated_and_a_slow_one_is_evaluated_on_fewer_samples(
    tried: tuple[Workload, Preview], weights: Path
) -> None:
    paces = {FOUND[0]: 5.0, FOUND[1]: 0.5}

    def before(stage: object, label: str, args: tuple[Any, ...]) -> object:
        assert stage is not evaluate or str(args[1].name) != FOUND[0]
        return paces.get(str(args[1].name)) if stage is pace else None

    slow, slower = ended(tried, weights, before)[FOUND[1]], ended(tried, weights, before)[FOUND[0]]
    assert slow.loss is not None
    assert slow.loss.samples == 64
    assert slower.uncompared == "it takes 5 s per row"


@pytest.mark.slow
def test_a_candidate_that_dies_costs_its_own_comparison_only(tried: tuple[Workload, Preview], weights: Path) -> None:
    def before(stage: object, label: str, args: tuple[Any, ...]) -> None:
        if stage is evaluate and str(args[1].name) == FOUND[0]:
            raise LostError(f"{label}: the stage was stopped after 180 s.", hint="Raise a limit.")

    found = ended(tried, weights, before)
    assert found[FOUND[0]].uncompared.endswith("quality on 256 samples: the stage was stopped after 180 s")
    assert found[FOUND[0]].obstacle == ""
    assert found[FOUND[1]].loss is not None


@pytest.mark.parametrize(
    ("ends", "bound", "said"),
    [
        ((-1.07, 1.07), 0.5, "about 1,200 test samples would decide whether the loss is within max_quality_drop = 0.5"),
        ((-1.07, 1.07), 0.6, ""),  # about 820 samples are there
        ((-0.4, 0.4), 0.5, ""),
        ((-9.0, 9.0), 1e-9, "more test samples than anyone has would decide"),
    ],
)
def test_a_test_split_that_is_too_small_for_the_bound_is_reported_with_a_sufficient_size(
    ends: tuple[float, float], bound: float, said: str
) -> None:
    of = {"recipe": "float", "runtime": "eager", "metrics": {}, "outputs": ArtifactRef(kind="outputs", digest="")}
    before = Evaluation(
        **of, quality_metric="accuracy", quality=90.0, quality_batched=90.0, higher_is_better=True, samples=256
    )
    comparison = Comparison(quality_difference=0.0, quality_difference_low=ends[0], quality_difference_high=ends[1])
    found = undecided(comparison, before, Gate(max_quality_drop=bound), available=1000)
    assert found.startswith(said)
    assert found.endswith("; there are 1,000") is bool(said)
    assert undecided(comparison, before, Gate(), available=1000) == ""


def meet(workspace: Workspace, folder: Path, own: str, other: str) -> str:
    """Return the stage's own name as soon as the other stage runs too."""
    (folder / own).touch()
    deadline = time.monotonic() + 60
    while not (folder / other).exists():
        assert time.monotonic() < deadline, f"{other} does not run beside {own}"
        time.sleep(0.01)
    return own


@pytest.mark.slow
def test_two_workers_run_stages_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTQUANT_WORKERS", "2")
    pairs = [("first", "second"), ("second", "first")]
    with running(str(tmp_path / "store")) as run, run.side_by_side() as executor:
        begun = [executor.submit(run, meet, own, tmp_path, own, other) for own, other in pairs]
        assert [each.result() for each in begun] == ["first", "second"]
