"""torch and torchao keep models that nobody uses any more, in tables that only grow; nightquant empties the tables."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tasks.environment.machine import memory_in_use, return_freed_memory
from tasks.quantize.export import export
from tasks.quantize.graph.convert import StaticConverter
from tasks.quantize.methods import QatRecipe
from tasks.quantize.pt2e import quantize_exported
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import spec_of
from tasks.quantize.trained import QatConverter
from tasks.runtimes import onnx_model
from tasks.runtimes.torchscript.make import write_script
from tests.tasks.quantize import networks
from tests.tasks.quantize.test_pt2e import MakeSource, static

TRAINED = {"name": "qat", "method": "qat", "epochs": 1, "batch_size": 16}
USES: dict[str, Callable[[ModelSource], object]] = {
    "export": lambda source: export(source.float_model(), source.example_inputs, source.axes),
    "onnx": lambda source: onnx_model.export(source.float_model(), source.example_inputs, source.axes),
    "graph": lambda source: StaticConverter().convert(source.float_model(), static(), source),
    "pt2e": lambda source: quantize_exported(static(), source),
    "training": lambda source: QatConverter().train(spec_of(QatRecipe.model_validate(TRAINED)), source),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.usefixtures("engine")
def test_a_model_is_freed_when_its_candidate_is_built(use: str, source_of: MakeSource) -> None:
    weights: list[weakref.ref[Tensor]] = []
    source = source_of()

    def recorded() -> nn.Module:
        model = source.float_model()
        weights.extend(map(weakref.ref, model.parameters()))
        return model

    USES[use](replace(source, float_model=recorded))
    gc.collect()
    assert weights
    assert not [weight for weight in weights if weight() is not None]


def test_the_weights_of_a_written_script_leave_memory(tmp_path: Path) -> None:
    def written() -> int:
        model = networks.one_path(nn.Linear(2048, 2048))  # 16 MiB
        write_script(model, {"x": torch.zeros(1, 2048)}, tmp_path / "model.ts", exact=False)
        del model
        gc.collect()
        return_freed_memory()
        return memory_in_use()

    first = written()
    assert [written() for _ in range(4)][-1] - first < 24 << 20  # instead of 64 MiB
