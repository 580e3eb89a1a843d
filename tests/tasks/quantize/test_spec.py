"""Specs of recipes, and what runtimes with given limits say to them."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.quantize.spec import Spec, limit, obstacle, spec_of
from tasks.workload.recipe import METHODS, Recipe


def spec(method: str, **keys: Any) -> Spec:
    return spec_of(Recipe.model_validate({"name": "r", "method": method, "runtimes": ["eager"], **keys}))


@pytest.mark.parametrize(
    ("method", "keys", "expected"),
    [
        ("none", {}, (set(), set(), "ordinary", False)),
        ("cast", {}, (set(), set(), "ordinary", False)),
        ("dynamic", {}, ({"int8"}, {"dynamic-per-tensor"}, "modules", True)),
        ("dynamic", {"dtype": "float16"}, ({"float16"}, {"float"}, "modules", False)),
        ("dynamic", {"embedding_bits": 4}, ({"int8", "int4"}, {"dynamic-per-tensor"}, "modules", True)),
        ("dynamic-per-row", {"embedding_bits": 8}, ({"int8"}, {"dynamic-per-row"}, "ordinary", False)),
        ("static", {}, ({"int8"}, {"static"}, "graph", False)),
        ("qat", {}, ({"int8"}, {"static"}, "graph", False)),
    ],
)
@pytest.mark.slow
def test_a_recipe_asks_for_weights_and_activations(
    method: str, keys: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = spec(method, **keys)
    assert (found.weights, found.activations, found.form, found.couples_rows) == expected


@pytest.mark.parametrize("method", list(METHODS))
def test_weights_are_trained_or_ranges_calibrated_but_not_both(method: str) -> None:
    found = spec(method)
    assert (found.training is not None, found.calibration is not None) == (method == "qat", method == "static")
    assert bool(found.why_float) is not METHODS[method].quantizes


def test_a_value_that_a_runtime_does_not_name_is_refused_with_the_reason_filled_in() -> None:
    bounds = (
        limit("activations", "float", "static", reason='not with method "{method}"'),
        limit("engine", None, "x86", reason='not on "{engine}"'),
    )
    assert obstacle(spec("static"), bounds) == ""
    assert obstacle(spec("none"), bounds) == ""
    assert obstacle(spec("static", engine="qnnpack"), bounds) == 'not on "qnnpack"'
    assert obstacle(spec("dynamic", engine="qnnpack"), bounds) == 'not with method "dynamic"'
