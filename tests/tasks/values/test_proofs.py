from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.values.proofs import TOP, FloatOperator, Operator, int8_share, most_expensive_floats, typical
from tasks.values.refs import ModuleCoverage

operators = st.builds(
    Operator,
    name=st.sampled_from(["", "a", "b/node"]),
    type=st.sampled_from(["Conv", "Gemm", "Relu"]),
    arithmetic=st.sampled_from(["int8", "float", "convert", "other"]),
    seconds=st.floats(0, 10),
)


def operator(arithmetic: str, seconds: float, kind: str = "Gemm", name: str = "") -> Operator:
    return Operator.model_validate({"name": name, "type": kind, "arithmetic": arithmetic, "seconds": seconds})


@given(st.lists(operators))
def test_the_share_is_a_share_and_the_most_expensive_come_first(found: list[Operator]) -> None:
    assert 0 <= int8_share(found) <= 1
    shares = [each.share for each in most_expensive_floats(found)]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) <= TOP
    assert sum(shares) + int8_share(found) <= 1 + 1e-9


def test_one_interrupted_call_does_not_count() -> None:
    calls = [operator("int8", 1.0) for _ in range(9)] + [operator("int8", 100.0)]
    assert typical([*calls, operator("float", 1.0)]) == [operator("int8", 1.0), operator("float", 1.0)]


def test_an_operator_in_float_has_its_modules_reason() -> None:
    coverage = [
        ModuleCoverage(module="layer", type="Linear", parameters=1, quantized=True),
        ModuleCoverage(module="layer.out", type="Linear", parameters=1, quantized=False, reason="it is excluded"),
    ]
    [found] = most_expensive_floats([operator("float", 1.0, name="layer.out/node_7"), operator("int8", 3.0)], coverage)
    assert found == FloatOperator(name="layer.out/node_7", type="Gemm", share=0.25, reason="it is excluded")
