from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.ao.quantization import (
    MinMaxObserver,
)

from tasks.quantize.graph import prepare
from tasks.quantize.graph.prepare import mapping_for, qconfig_for
from tasks.quantize.methods import QatRecipe, StaticRecipe
from tasks.quantize.spec import Spec, spec_of


def static(**changes: object) -> Spec:
    return spec_of(StaticRecipe(name="s", method="static", **changes))


@pytest.mark.parametrize(
    ("engine", "saturates", "reduced"),
    [
        ("x86", True, True),
        ("x86", False, True),
        ("fbgemm", False, True),
        ("onednn", True, True),
        ("onednn", False, False),
        ("qnnpack", False, False),
    ],
)
def test_the_range_is_reduced_where_the_engine_may_saturate(
    monkeypatch: pytest.MonkeyPatch, engine: str, saturates: bool, reduced: bool
) -> None:
    monkeypatch.setattr(prepare, "saturates", {engine: saturates}.get)
    assert qconfig_for(static(engine=engine)).activation().reduce_range is reduced
    trained = qconfig_for(spec_of(QatRecipe(name="q", method="qat", engine=engine))).activation()
    assert trained.activation_post_process.quant_max == (127 if reduced else 255)


def test_fx_keeps_fixed_ranges_and_takes_the_recipes_observers_elsewhere() -> None:
    mapping = mapping_for(static(activation_observer="min-max"))
    assert type(mapping.global_qconfig.activation()) is MinMaxObserver
    assert mapping.object_type_qconfigs[nn.ConvTranspose2d] is None
    assert mapping.object_type_qconfigs[torch.conv_transpose2d] is None
    assert mapping.object_type_qconfigs[torch.sigmoid].activation().scale == pytest.approx(1 / 256)
