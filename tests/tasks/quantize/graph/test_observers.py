from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.ao.quantization import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
)

from storage.errors import QuantizationError
from tasks.job import silent
from tasks.quantize.graph.observers import calibrate, mapping_for, qconfig_for, why_unsupported
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import StaticRecipe


def static(**changes: object) -> StaticRecipe:
    return StaticRecipe(name="s", method="static", **changes)


@pytest.mark.parametrize(
    ("engine", "reduced"), [("x86", True), ("fbgemm", True), ("onednn", False), ("qnnpack", False)]
)
def test_the_range_is_reduced_where_the_engine_may_saturate(engine: str, reduced: bool) -> None:
    assert qconfig_for(static(engine=engine)).activation().reduce_range is reduced
    trained = qconfig_for(QatRecipe(name="q", method="qat", engine=engine)).activation()
    assert trained.activation_post_process.quant_max == (127 if reduced else 255)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("min-max", MinMaxObserver), ("moving-average", MovingAverageMinMaxObserver), ("histogram", HistogramObserver)],
)
def test_the_recipe_chooses_the_activation_observer(name: str, kind: type) -> None:
    assert type(qconfig_for(static(activation_observer=name)).activation()) is kind


@pytest.mark.parametrize("engine", ["x86", "qnnpack"])
def test_the_recipe_chooses_the_granularity_of_weights(engine: str) -> None:
    fine, coarse = static(engine=engine), static(engine=engine, weights="per-tensor")
    assert type(qconfig_for(fine).weight()) is PerChannelMinMaxObserver
    assert type(qconfig_for(coarse).weight()) is MinMaxObserver


def test_fx_keeps_fixed_ranges_and_takes_the_recipes_observers_elsewhere() -> None:
    mapping = mapping_for(static(activation_observer="min-max"))
    assert type(mapping.global_qconfig.activation()) is MinMaxObserver
    assert mapping.object_type_qconfigs[nn.ConvTranspose2d] is None
    assert mapping.object_type_qconfigs[torch.conv_transpose2d] is None
    assert mapping.object_type_qconfigs[torch.sigmoid].activation().scale == pytest.approx(1 / 256)


def test_only_what_has_no_kernel_to_trust_is_unsupported() -> None:
    assert "wrong for some shapes" in why_unsupported("ConvTranspose2d")
    assert why_unsupported("Conv2d") == ""


def test_calibration_runs_the_first_batches_and_reports_each() -> None:
    model, seen, progress = nn.Linear(2, 2), [], []
    model.register_forward_hook(lambda *_: seen.append(1))
    batches = ((torch.ones(3, 2),) for _ in range(5))
    calibrate(model, batches, 3, "tiny", lambda done, total, unit="": progress.append((done, total)))
    assert len(seen) == 3
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_an_empty_calibration_set_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r'"tiny" has no calibration samples.*data.calibration'):
        calibrate(nn.Linear(2, 2), iter(()), 3, "tiny", silent)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), HistogramObserver()])
def test_activations_that_are_not_finite_are_refused_with_their_batch(model: nn.Module) -> None:
    batches = [(torch.ones(1, 2),), (torch.full((1, 2), float("nan")),)]
    with pytest.raises(QuantizationError, match=r"NaN or infinit.*batch 2 of calibration"):
        calibrate(model, batches, 2, "tiny", silent)
