from __future__ import annotations

from tasks.quantize.methods import StaticRecipe


def test_a_cheap_variant_calibrates_on_a_limited_number_of_samples() -> None:
    def calibrated(samples: int, **keys: object) -> tuple[int, int]:
        cheap_variant = StaticRecipe.model_validate({"name": "a", "method": "static", **keys}).cheap_variant(samples)
        return cheap_variant.calibration_batches, cheap_variant.calibration_batch_size

    assert calibrated(1) == (1, 1)
    assert calibrated(64) == (2, 32)
    assert calibrated(64, calibration_batches=1) == (1, 32)
    assert calibrated(64, calibration_batch_size=256) == (1, 64)
    assert calibrated(64, calibration_batches=4, calibration_batch_size=8) == (4, 8)
