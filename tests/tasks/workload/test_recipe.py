from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.quantize.methods import StaticRecipe


@pytest.mark.slow
def test_a_runtime_that_is_named_twice_is_refused() -> None:
    assert StaticRecipe(name="int8", method="static", runtimes=("torchscript", "eager")).runtimes[0] == "torchscript"
    with pytest.raises(
        ValidationError, match=r"runtimes contains a name twice \(eager, eager\); list each runtime only once"
    ):
        StaticRecipe(name="int8", method="static", runtimes=("eager", "eager"))


def test_a_sketch_calibrates_on_at_most_so_many_samples_of_the_recipes_own() -> None:
    def calibrated(samples: int, **keys: object) -> tuple[int, int]:
        sketch = StaticRecipe.model_validate({"name": "a", "method": "static", **keys}).sketch(samples)
        return sketch.calibration_batches, sketch.calibration_batch_size

    assert calibrated(1) == (1, 1)
    assert calibrated(64) == (2, 32)
    assert calibrated(64, calibration_batches=1) == (1, 32)
    assert calibrated(64, calibration_batch_size=256) == (1, 64)
    assert calibrated(64, calibration_batches=4, calibration_batch_size=8) == (4, 8)
