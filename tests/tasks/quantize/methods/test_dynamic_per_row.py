"""The method dynamic-per-row: what it covers, and that a night's own steps keep and open what it makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.quantize.int8_modules import MOST_FEATURES, Int8Embedding, Int8Linear, Int8Lstm
from tasks.quantize.methods import DynamicPerRowRecipe
from tasks.quantize.source import Converted, ModelSource, converter_of
from tasks.quantize.spec import spec_of
from tasks.workload import Workload
from tests.tasks.pipeline import build, example_inputs, job_of, opened
from tests.tasks.quantize.words import WORDS, call, same, words_workload

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operators_loaded")]

Convert = Callable[..., Converted]


@pytest.fixture
def convert(source_of: Callable[..., ModelSource]) -> Convert:
    def run(model: nn.Module, **settings: Any) -> Converted:
        spec = spec_of(DynamicPerRowRecipe(name="rows", method="dynamic-per-row", **settings))
        return converter_of(spec).convert(model.eval(), spec, source_of())

    return run


def reasons(converted: Converted) -> dict[str, str]:
    return {row.module: row.reason for row in converted.coverage if not row.quantized}


def test_the_named_types_are_replaced_and_the_others_say_why(convert: Convert) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4), "rnn": nn.LSTM(4, 4), "norm": nn.LayerNorm(4)})
    model["head"] = nn.Linear(4, 2)
    converted = convert(model)
    types = {name: type(module) for name, module in converted.model.named_children()}
    assert types == {"embed": nn.Embedding, "rnn": Int8Lstm, "norm": nn.LayerNorm, "head": Int8Linear}
    assert set(reasons(converted)) == {"embed", "norm"}
    assert reasons(converted)["norm"] == "the recipe does not name the type LayerNorm"


def test_embeddings_are_quantized_where_asked_for(convert: Convert) -> None:
    converted = convert(nn.Sequential(nn.Embedding(9, 4)), embedding_bits=8)
    assert isinstance(converted.model[0], Int8Embedding)
    with pytest.raises(QuantizationError, match="not quantize any embedding"):
        convert(nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 2)), embedding_bits=8)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.LSTM(2, 4, bidirectional=True), "bidirectional"),
        (nn.LSTM(2, 4, proj_size=2), "projections"),
        (nn.Linear(MOST_FEATURES + 1, 1), "32 bits"),
        (nn.GRU(2, 4), "does not name the type GRU"),
        (type("Special", (nn.Linear,), {})(2, 2), "a subclass of Linear"),
    ],
)
def test_a_module_without_a_kernel_stays_float_with_the_reason(module: nn.Module, why: str, convert: Convert) -> None:
    converted = convert(nn.Sequential(module, nn.Linear(2, 2)))
    assert list(reasons(converted)) == ["0"]
    assert why in reasons(converted)["0"]
    assert converted.model[0] is module


@pytest.mark.slow
def test_a_candidate_goes_through_the_store(tmp_path: Path, images_store: ArtifactStore) -> None:
    document = WORDS | words_workload(tmp_path).model_dump(mode="json", include={"data", "checkpoint"})
    recipes = [{"name": "float", "method": "none"}, {"name": "rows", "method": "dynamic-per-row", "embedding_bits": 8}]
    job = job_of(Workload.model_validate(document | {"recipe": recipes}), images_store)
    inputs = example_inputs(job.workload, job.dataset, images_store)
    exact, outputs = (
        call(opened(build(job, name, "eager", images_store), images_store), inputs) for name in ("float", "rows")
    )
    candidate = build(job, "rows", "eager", images_store)
    assert same(outputs, call(opened(candidate, images_store), inputs))
    assert not torch.equal(outputs[0], exact[0])
    torch.testing.assert_close(outputs[0], exact[0], rtol=0, atol=0.02)
    assert {row.module for row in candidate.coverage if row.quantized} == {"encoder", "rnn", "decoder"}
