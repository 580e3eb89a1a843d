"""The word language model's shapes, names and first weights, and its example inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.data.samples import load_samples
from tasks.domains.language_model import WordLanguageModelSpec
from tasks.domains.language_model.domain import LanguageModel
from tasks.refs import DatasetRef
from tests.tasks.pipeline import example_inputs, prepare
from tests.tasks.text_workloads import text_workload, write_corpus


@pytest.mark.slow
def test_parameters_have_the_tutorials_names_and_shapes() -> None:
    spec = WordLanguageModelSpec(kind="word-lm", embedding_size=6, hidden_size=4, layers=2)
    model = LanguageModel().build(spec, DatasetRef(kind="corpus", digest="", splits={}, vocabulary=11))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes == {
        "encoder.weight": (11, 6),
        "rnn.weight_ih_l0": (16, 6),
        "rnn.weight_hh_l0": (16, 4),
        "rnn.bias_ih_l0": (16,),
        "rnn.bias_hh_l0": (16,),
        "rnn.weight_ih_l1": (16, 4),
        "rnn.weight_hh_l1": (16, 4),
        "rnn.bias_ih_l1": (16,),
        "rnn.bias_hh_l1": (16,),
        "decoder.weight": (11, 4),
        "decoder.bias": (11,),
    }


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
