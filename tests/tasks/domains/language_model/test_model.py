"""The word language model's shapes, names and first weights, and its example inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.data.samples import load_samples
from tasks.domains.language_model import LanguageModelWorkload, WordLanguageModelSpec
from tasks.domains.language_model.domain import LanguageModel, WordLanguageModel
from tasks.refs import DatasetRef
from tests.tasks.pipeline import example_inputs, prepare
from tests.tasks.text_workloads import text_document, text_workload, write_corpus


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


def test_first_weights_are_even_within_a_tenth() -> None:
    model = WordLanguageModel(200, 16, 8, 1, 0.5)
    for weight in (model.encoder.weight, model.decoder.weight):
        assert weight.abs().max() <= 0.1
        assert weight.abs().max() > 0.09
    assert not model.decoder.bias.any()


@pytest.mark.slow
def test_the_state_carries_a_text_over_from_call_to_call() -> None:
    model = WordLanguageModel(9, 6, 4, 2, 0.5).eval()
    tokens = torch.arange(8).view(8, 1)
    zero = torch.zeros(2, 1, 4)
    with torch.inference_mode():
        whole, h, c = model(tokens, zero, zero)
        first, *state = model(tokens[:5], zero, zero)
        second, h2, c2 = model(tokens[5:], *state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close((h2, c2), (h, c))


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


def test_a_checkpoint_that_does_not_fit_is_told_how_it_would(tmp_path: Path) -> None:
    spec = WordLanguageModelSpec(kind="word-lm", embedding_size=6, hidden_size=4, layers=2)
    workload = LanguageModelWorkload.model_validate(text_document(tmp_path, model=spec.model_dump()))
    dataset = DatasetRef(kind="corpus", digest="", splits={}, vocabulary=11)
    shapes = {name: tuple(tensor.shape) for name, tensor in WordLanguageModel(9, 6, 5, 1, 0.0).state_dict().items()}
    hint = LanguageModel().fit_hint(shapes, workload, dataset)
    assert "model.hidden_size = 5 (currently 4)" in hint
    assert "model.layers = 1 (currently 2)" in hint
    assert "9 words instead of 11" in hint
    assert LanguageModel().fit_hint({"weight": (2, 2)}, workload, dataset).startswith("Set [model]")
