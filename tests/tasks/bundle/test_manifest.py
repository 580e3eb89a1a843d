from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from storage.errors import BundleError
from tasks.bundle.manifest import describe_golden
from tasks.quantize.methods import DynamicRecipe, FloatRecipe, StaticRecipe
from tasks.quantize.spec import spec_of
from tests.tasks.bundle.conftest import Made


@pytest.mark.slow
def test_a_float_model_must_be_reproduced_more_closely_than_a_quantized_one():
    whole = FloatRecipe(name="float", method="none")
    half = DynamicRecipe(name="half", method="dynamic", dtype="float16")
    int8 = StaticRecipe(name="int8", method="static")
    shares = [spec_of(recipe).tolerance for recipe in (whole, half, int8)]
    assert shares[0] < shares[1] < shares[2]


@pytest.mark.slow
def test_golden_tensors_that_are_missing_or_not_finite_are_refused(made: Made, tmp_path: Path):
    path, order = tmp_path / "golden.safetensors", {"names": json.dumps([["inputs"], ["outputs"]])}
    provenance = made.provenance(candidate=made.candidate.model_copy(update={"recipe": "float"}))
    good = {"input.inputs": np.zeros((2, 2), np.float32), "output.0": np.arange(4, dtype=np.float32)}
    save_file(good, path, order)
    _, outputs, _ = describe_golden(path, provenance)
    assert outputs[0]["name"] == "outputs"
    assert outputs[0]["tolerance"] == pytest.approx(3e-4)
    for bad in (
        {"output.0": good["output.0"]},
        good | {"output.0": np.full(4, np.nan, np.float32)},
        good | {"output.0": np.zeros(0, np.float32)},
        good | {"input.more": np.zeros(1, np.float32)},
    ):
        save_file(bad, path, order)
        with pytest.raises(BundleError):
            describe_golden(path, provenance)
