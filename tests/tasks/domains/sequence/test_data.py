from __future__ import annotations

from pathlib import Path

import torch

from storage.artifacts import ArtifactStore
from tasks.domains.sequence.data import load_sequence
from tasks.prepare import prepare
from tests.tasks.workloads import workload_of


def test_the_sequence_is_the_one_that_the_recipe_draws(tmp_path: Path) -> None:
    workload = workload_of("sequence", {"kind": "random-sequence"}, {"kind": "lstm"}, {"kind": "seeded"})
    store = ArtifactStore(tmp_path)
    before = torch.random.get_rng_state()
    dataset = prepare(workload, store)
    assert torch.equal(before, torch.random.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(29592)
        expected = {"inputs": torch.randn(20, 1, 8), "h": torch.randn(1, 1, 8), "c": torch.randn(1, 1, 8)}
    found = load_sequence(dataset, store)
    assert list(found) == ["inputs", "h", "c"]
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert dataset.splits == {"test": 1}
    assert dataset.sample_shape == (20, 8)


def test_another_shape_is_another_artifact(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    digests = {
        prepare(
            workload_of(
                "sequence", {"kind": "random-sequence", "length": length}, {"kind": "lstm"}, {"kind": "seeded"}
            ),
            store,
        ).digest
        for length in (2, 3)
    }
    assert len(digests) == 2
