from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, NightquantError
from tasks.data.weights import load_state
from tasks.run.stages import preview
from tasks.values.job import Workspace
from tasks.workload import Workload
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import build, evaluate, job_of

TRAIN = {"kind": "train", "train": "own_code:train", "seed": 3, "epochs": 2}


def test_the_users_training_makes_the_weights_from_all_splits(tmp_path: Path) -> None:
    write(tmp_path)
    store = ArtifactStore(tmp_path)
    job = job_of(own(tmp_path, checkpoint=TRAIN), store)
    assert set(load_state(job.checkpoint, store)["layer.weight"].flatten().tolist()) == {3 + 2 + 10}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "returned an object of type int instead of None or a state dict"),
        ("model.nothing", "AttributeError.*nothing"),
    ],
)
def test_a_training_that_fails_is_one_clear_message(tmp_path: Path, body: str, message: str) -> None:
    write(tmp_path, f"{CODE}\ndef train(model, splits, seed, epochs):\n    {body}\n")
    with pytest.raises(ConfigurationError, match=message):
        job_of(own(tmp_path, checkpoint=TRAIN), ArtifactStore(tmp_path))


FINE_TUNING = """
from pathlib import Path

def fine_tune(model, splits, seed, epochs, rate=0.5):
    observers = {int(each.observer_enabled) for each in model.modules() if hasattr(each, "observer_enabled")}
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(f"{seed} {epochs} {observers} {model.training}\\n")
    rows, target = torch.stack([row for row, _ in splits["train"]]), torch.tensor([each for _, each in splits["train"]])
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(100 * epochs):
        loss = nn.functional.cross_entropy(model(rows), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def everything(rows=40, features=3):
    items = splits(rows, features)["train"]
    return {"train": items, "calibration": items, "test": items}

def broken(model, splits, seed, epochs):
    raise ValueError("no data today")
"""
RECIPES = [
    {"name": "float", "method": "none"},
    {"name": "static", "method": "static"},
    {"name": "qat", "method": "qat", "seed": 5, "epochs": 3, "runtimes": ["eager", "onnxruntime"]},
]


def tuned(folder: Path, train: str = "fine_tune", **changes: object) -> Workload:
    """A workload whose test split is its train split, and whose float weights are random."""
    data = {"kind": "factory", "factory": "own_code:everything"}
    fine_tune = {"train": f"own_code:{train}"}
    return own(
        folder, **({"data": data, "recipe": RECIPES, "evaluate": {"metric": "loss"}, "fine_tune": fine_tune} | changes)
    )


@pytest.mark.slow
def test_the_users_training_goes_on_with_fake_quantization_once_for_all_runtimes(tmp_path: Path) -> None:
    write(tmp_path, CODE + FINE_TUNING)
    store = ArtifactStore(tmp_path)
    job = job_of(tuned(tmp_path), store)
    untrained = evaluate(job, build(job, "static", "eager", store), store)
    for runtime in ("eager", "onnxruntime"):
        trained = evaluate(job, build(job, "qat", runtime, store), store)
        assert trained.quality < untrained.quality - 0.1
    # Two epochs in which ranges move, and the last one.
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls == ["5 2 {1} True", "7 1 {0} True"]
    write(tmp_path, (CODE + FINE_TUNING).replace("rate=0.5", "rate=0.4"))
    job = job_of(tuned(tmp_path), store)
    build(job, "qat", "eager", store)
    assert len((tmp_path / "calls.txt").read_text().splitlines()) == 4


def test_without_a_section_of_its_own_fine_tuning_calls_the_checkpoints_training(tmp_path: Path) -> None:
    write(tmp_path, CODE + FINE_TUNING)
    store = ArtifactStore(tmp_path)
    checkpoint = {"kind": "train", "train": "own_code:fine_tune", "arguments": {"rate": 0.01}}
    job = job_of(tuned(tmp_path, checkpoint=checkpoint, fine_tune=None), store)
    before, after = (evaluate(job, build(job, recipe, "eager", store), store) for recipe in ("float", "qat"))
    assert after.quality < before.quality
    assert (tmp_path / "calls.txt").read_text().splitlines() == ["0 1 set() True", "5 2 {1} True", "7 1 {0} True"]


def test_fine_tuning_that_fails_is_one_clear_message(tmp_path: Path) -> None:
    write(tmp_path, CODE + FINE_TUNING)
    store = ArtifactStore(tmp_path)
    job = job_of(tuned(tmp_path, "broken"), store)
    with pytest.raises(NightquantError, match=r'"own_code:broken" failed when called: ValueError: no data') as caught:
        build(job, "qat", "eager", store)
    assert "tasks/" not in str(caught.value)


def test_arguments_that_a_training_does_not_accept_are_refused_before_it_is_called(tmp_path: Path) -> None:
    write(tmp_path, CODE + FINE_TUNING)
    store = ArtifactStore(tmp_path)
    checkpoint = {"kind": "train", "train": "own_code:fine_tune", "arguments": {"rat": 0.01}}
    found = preview(Workspace(store), tuned(tmp_path, checkpoint=checkpoint, fine_tune=None))
    [problem] = found.problems
    assert problem.startswith(
        'checkpoint.train "own_code:fine_tune" cannot be called: got an unexpected keyword argument'
    )
    assert "Correct `arguments` in [checkpoint]" in problem
    assert not (tmp_path / "calls.txt").exists()
