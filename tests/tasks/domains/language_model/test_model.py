"""The word language model's shapes, names and first weights, and its example inputs."""

from __future__ import annotations

from pathlib import Path

import torch

from storage.artifacts import ArtifactStore
from tasks.data.samples import load_samples
from tests.tasks.pipeline import example_inputs, prepare
from tests.tasks.text_workloads import text_workload, write_corpus


def test_example_inputs_are_the_beginning_of_the_test_split(tmp_path: Path) -> None:
    workload = text_workload(
        write_corpus(tmp_path / "corpus"), benchmark={"baseline": "float/eager", "sequence_length": 7}
    )
    store = ArtifactStore(tmp_path / "store")
    dataset = prepare(workload, store)
    ids = load_samples(dataset, "test", store)["tokens"]
    inputs = example_inputs(workload, dataset, store, batch_size=3)
    assert list(inputs) == ["tokens", "h", "c"]
    assert inputs["tokens"].dtype == torch.int64
    assert inputs["tokens"].t().flatten().tolist() == ids[:21].tolist()
    assert inputs["h"].shape == inputs["c"].shape == (2, 3, 8)
    longer = example_inputs(workload, dataset, store, batch_size=len(ids))
    assert longer["tokens"].shape == (7, len(ids))
