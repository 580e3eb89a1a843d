"""Dynamic recipes on models that torch can convert in part, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from storage.errors import QuantizationError
from tasks.quantize.engine import quantized_engine, without_deprecations
from tasks.quantize.methods import DynamicRecipe
from tasks.quantize.source import Converted, ModelSource, converter_of
from tasks.quantize.spec import spec_of

Convert = Callable[..., Converted]


@pytest.fixture(autouse=True)
def _x86() -> Iterator[None]:
    with quantized_engine("x86"), without_deprecations():
        yield


@pytest.fixture
def convert(source_of: Callable[..., ModelSource]) -> Convert:
    def run(model: nn.Module, **settings: Any) -> Converted:
        spec = spec_of(DynamicRecipe(name="dynamic", method="dynamic", **settings))
        return converter_of(spec).convert(model.eval(), spec, source_of())

    return run


def reasons(converted: Converted) -> dict[str, str]:
    return {row.module: row.reason for row in converted.coverage if not row.quantized}


def test_excluding_a_container_excludes_its_submodules(convert: Convert) -> None:
    converted = convert(nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)), exclude=("0",))
    assert reasons(converted) == {"0.0": "excluded by the recipe"}
    assert type(converted.model[0][0]) is nn.Linear


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Conv2d(1, 1, 1)), nn.Linear(2, 2), nn.Sequential(nn.LSTM(2, 2, bias=False)), nn.Sequential()],
    ids=["no such type", "the model itself", "no kernel", "empty"],
)
@pytest.mark.slow
def test_a_recipe_that_quantizes_nothing_is_refused(model: nn.Module, convert: Convert) -> None:
    with pytest.raises(QuantizationError, match="does not quantize any module"):
        convert(model)


def test_gru_is_quantized_where_the_recipe_names_it(convert: Convert) -> None:
    converted = convert(nn.Sequential(nn.GRU(2, 4)), modules=("GRU",))
    assert converted.coverage[0].quantized
    assert converted.model[0](torch.zeros(3, 1, 2))[0].shape == (3, 1, 4)


def test_four_bit_rows_of_odd_width_are_refused_where_nothing_else_is_embedded(convert: Convert) -> None:
    with pytest.raises(QuantizationError, match=r"not quantize any embedding.*even number"):
        convert(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), embedding_bits=4)


# torch's own module for 8 bits takes indices of one or two axes only.
@pytest.mark.parametrize(
    ("bits", "shape"), [(bits, shape) for bits in (4, 8) for shape in [(7,), (2, 3), (0, 4)]] + [(4, (2, 1, 3))]
)
@pytest.mark.slow
def test_quantized_embeddings_take_indices_of_any_shape(bits: int, shape: tuple[int, ...], convert: Convert) -> None:
    embedding = nn.Sequential(nn.Embedding(9, 6))
    expected = embedding(torch.ones(shape, dtype=torch.int64))
    found = convert(embedding, embedding_bits=bits).model(torch.ones(shape, dtype=torch.int64))
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=0.5)


def test_float16_on_an_engine_without_it_is_an_error_of_the_recipe(convert: Convert) -> None:
    with quantized_engine("qnnpack"), pytest.raises(QuantizationError, match=r"engine does not support the .* recipe"):
        convert(nn.Sequential(nn.Linear(2, 2)), dtype="float16", engine="qnnpack")
