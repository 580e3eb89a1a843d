from __future__ import annotations

import pytest

from tasks.proof.doubts import doubt_about_batches, doubts_about
from tasks.proofs import Operator
from tasks.refs import ModuleCoverage

COVERAGE = [
    ModuleCoverage(module="conv", type="Conv2d", parameters=9, quantized=True),
    ModuleCoverage(module="norm", type="LayerNorm", parameters=2, quantized=False, reason="not named"),
]
EXCLUDED = ModuleCoverage(module="fc", type="Linear", parameters=9, quantized=False, reason="it is excluded")


def int8(kind: str = "QLinearConv", name: str = "conv/node") -> Operator:
    return Operator(name=name, type=kind, arithmetic="int8", seconds=1.0)


def in_float(kind: str, name: str = "") -> Operator:
    return Operator(name=name, type=kind, arithmetic="float", seconds=1.0)


def doubts(*operators: Operator, coverage: list[ModuleCoverage] = COVERAGE) -> list[str]:
    return list(doubts_about(operators, coverage, {}, None))


def test_nothing_is_said_of_int8_with_float_around_it() -> None:
    assert doubts(int8(), in_float("LayerNormalization", "norm/node"), in_float("Softmax")) == []


def test_a_quantized_module_that_runs_in_float_is_named() -> None:
    assert doubts(in_float("Conv", "conv/node")) == ["Conv of conv, which counts as quantized, runs in float"]


@pytest.mark.parametrize("kind", ["aten::addmm", "oneDNN convolution (jit:avx512_core)", "aten::mkldnn_rnn_layer"])
def test_a_product_without_a_name_is_one_too_many_where_no_module_stayed_float(kind: str) -> None:
    assert doubts(int8(), in_float(kind)) == [f"{kind} runs in float"]
    assert doubts(int8(), in_float(kind), coverage=[*COVERAGE, EXCLUDED]) == []


def test_a_module_that_stayed_float_by_the_recipe_is_no_doubt() -> None:
    assert doubts(int8(), in_float("Gemm", "fc/node"), coverage=[*COVERAGE, EXCLUDED]) == []


def test_a_module_that_was_to_stay_float_and_runs_in_int8_is_told() -> None:
    found = doubts(int8("QGemm", "fc/node"), coverage=[*COVERAGE, EXCLUDED])
    assert found == ["QGemm of fc, which counts as float, runs in int8"]


@pytest.mark.slow
def test_products_of_two_activations_have_no_weights_to_quantize() -> None:
    assert doubts(int8(), in_float("MatMul", "attention/scores"), in_float("aten::bmm")) == []


@pytest.mark.parametrize("kind", ["BatchNormalization", "aten::batch_norm", "aten::native_batch_norm"])
def test_what_belongs_into_a_product_and_runs_by_itself_was_not_fused(kind: str) -> None:
    [found] = doubts(int8(), in_float(kind, "bn/node"))
    assert found.startswith(f"{kind} (bn/node) runs in float by itself")


@pytest.mark.slow
def test_saturation_is_told_where_such_instructions_ran() -> None:
    assert list(doubts_about([int8()], COVERAGE, {"avx2-int8": 0.9}, 0.2, 0.02)) == [
        "products saturate: outputs are off by 20.0% of their range"
    ]
    assert not list(doubts_about([int8()], COVERAGE, {"avx2-int8": 0.9}, 0.01, 0.02))
    assert not list(doubts_about([int8()], COVERAGE, {"vnni": 0.9}, 0.2, 0.02))


@pytest.mark.slow
def test_a_float_candidate_is_not_doubted() -> None:
    assert doubts(in_float("Conv", "conv/node"), coverage=[EXCLUDED]) == []


def test_rows_that_see_each_other_are_told() -> None:
    assert doubt_about_batches(None) == doubt_about_batches(2e-7) == ""
    assert "by up to 1.2% of their range" in doubt_about_batches(0.012)
