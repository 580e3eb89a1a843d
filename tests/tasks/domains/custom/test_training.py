from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.checkpoint import load_state
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import job_of

TRAIN = {"kind": "train", "train": "own_code:train", "seed": 3, "epochs": 2}


def test_the_users_training_makes_the_weights_from_all_splits(tmp_path: Path) -> None:
    write(tmp_path)
    store = ArtifactStore(tmp_path)
    job = job_of(own(tmp_path, checkpoint=TRAIN), store)
    assert set(load_state(job.checkpoint, store)["layer.weight"].flatten().tolist()) == {3 + 2 + 10}


def test_a_state_dict_that_training_returns_is_taken(tmp_path: Path) -> None:
    code = "\ndef train(model, splits, seed, epochs):\n    return {n: t * 0 for n, t in model.state_dict().items()}\n"
    write(tmp_path, CODE + code)
    store = ArtifactStore(tmp_path)
    assert not load_state(job_of(own(tmp_path, checkpoint=TRAIN), store).checkpoint, store)["layer.weight"].any()


@pytest.mark.parametrize(
    ("body", "message"),
    [("return 3", "returned int, not None or a state dict"), ("model.nothing", "AttributeError.*nothing")],
)
def test_a_training_that_fails_is_one_clear_message(tmp_path: Path, body: str, message: str) -> None:
    write(tmp_path, f"{CODE}\ndef train(model, splits, seed, epochs):\n    {body}\n")
    with pytest.raises(ConfigurationError, match=message):
        job_of(own(tmp_path, checkpoint=TRAIN), ArtifactStore(tmp_path))
