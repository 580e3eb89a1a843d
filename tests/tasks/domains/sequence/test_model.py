"""The bare LSTM and its inputs."""

from __future__ import annotations

from pathlib import Path

import torch

from storage.artifacts import ArtifactStore
from tasks.domains.sequence.model import seeded_state
from tasks.models import build, example_inputs
from tasks.prepare import prepare
from tasks.workload import Workload

WORKLOAD = Workload.model_validate(
    {
        "schema_version": 1,
        "name": "tiny-sequence",
        "description": "tiny sequence",
        "purpose": "sequence",
        "data": {"kind": "random-sequence", "seed": 4, "length": 5, "batch_size": 2},
        "model": {"kind": "lstm", "dimension": 3, "layers": 2},
        "checkpoint": {"kind": "seeded", "seed": 4},
        "recipe": [{"name": "float", "method": "none"}],
    }
)


def test_more_columns_than_there_are_repeat_the_first(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    dataset = prepare(WORKLOAD, store)
    inputs = example_inputs(WORKLOAD, dataset, store, batch_size=3)
    assert inputs["inputs"].shape == (5, 3, 3)
    assert inputs["h"].shape == inputs["c"].shape == (2, 3, 3)
    assert torch.equal(inputs["inputs"][:, 2], inputs["inputs"][:, 0])
    outputs = build(WORKLOAD.model, dataset)(*inputs.values())
    assert [tuple(output.shape) for output in outputs] == [(5, 3, 3), (2, 3, 3), (2, 3, 3)]


def test_drawing_weights_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = seeded_state(WORKLOAD, 4), seeded_state(WORKLOAD, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = seeded_state(WORKLOAD, 5)
    assert any(not torch.equal(first[name], other[name]) for name in first)
