from __future__ import annotations

from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.data.weights import load_state
from tests.tasks.domains.text_encoder.encoders import encoder, of_config, write_table
from tests.tasks.pipeline import build, evaluate, job_of


def trained(folder: Path, place: str, **keys: object) -> tuple[dict[str, torch.Tensor], float]:
    write_table(folder)
    store = ArtifactStore(folder / place)
    checkpoint = {"kind": "train", "epochs": 16, "batch_size": 8, "learning_rate": 2e-3} | keys
    job = job_of(encoder(folder, model=of_config(hidden_size=32), checkpoint=checkpoint), store)
    return load_state(job.checkpoint, store), evaluate(job, build(job, "float", "eager", store), store).quality


@pytest.mark.slow
def test_training_learns_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    (first, quality), (again, _), (other, _) = (
        trained(tmp_path, place, seed=seed) for place, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert quality > 90  # words of the three classes do not overlap
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
