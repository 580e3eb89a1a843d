"""Sizes: only recipes that do not quantize, and are too large for certain, are dropped before they are built."""

from __future__ import annotations

import pytest

from tasks.quantize.methods import CastRecipe, DynamicRecipe, FloatRecipe
from tasks.search.space import without_too_large
from tasks.search.trial import Outcome, Trial
from tasks.workload.recipe import Recipe

FLOAT = FloatRecipe(name="float", method="none")
CAST = CastRecipe(name="bfloat16", method="cast")
DYNAMIC = DynamicRecipe(name="dynamic", method="dynamic")


@pytest.mark.parametrize(
    ("recipe", "max_bytes", "outcome"),
    [
        (FLOAT, 89, "dropped"), (FLOAT, 91, "open"), (CAST, 44, "dropped"), (CAST, 46, "open"), (DYNAMIC, 1, "open"),
    ],
)  # fmt: skip
def test_a_recipe_whose_weights_exceed_the_bound_is_dropped(recipe: Recipe, max_bytes: float, outcome: Outcome) -> None:
    trial = Trial(number=1, recipe=recipe, runtime="openvino", origin="space")
    (found,) = without_too_large([trial], 100, max_bytes)
    assert found.outcome == outcome
    assert bool(found.reason) == (outcome == "dropped")
