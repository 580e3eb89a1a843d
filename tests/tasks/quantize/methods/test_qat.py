from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tasks.quantize.converted import flatten_state, load_flat_state
from tasks.quantize.methods import QatRecipe
from tasks.quantize.source import ModelSource, converter_of
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.trained import _to_training
from tests.tasks.quantize import networks

Sources = Callable[..., ModelSource]


def recipe(**changes: object) -> Spec:
    return spec_of(
        QatRecipe(name="qat", method="qat", **{"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, **changes})
    )


def work_of(source: ModelSource) -> list[Path]:
    return list((source.workspace.store.root / "work").iterdir())


@pytest.mark.parametrize("network", ["with_dropout", "Residual", "SharedRelu", "OwnStubs"])
@pytest.mark.slow
def test_a_trained_model_converts_and_its_skeleton_takes_its_state(
    network: str, source_of: Sources, engine: str
) -> None:
    source = source_of(network)
    converted = converter_of(recipe()).convert(source.float_model(), recipe(epochs=1), source)
    model = getattr(networks, network)().eval()
    skeleton = converter_of(recipe()).skeleton(model, recipe(), source.example_inputs)
    load_flat_state(skeleton, flatten_state(converted.model.state_dict()))
    inputs = source.example_inputs.values()
    assert torch.equal(skeleton(*inputs), converted.model(*inputs))
    # Functional dropout of the training mode must not stay in the graph.
    assert torch.equal(converted.model(*inputs), converted.model(*inputs))
    assert any(row.quantized for row in converted.coverage)


def test_training_changes_weights_and_leaves_no_work_behind(source_of: Sources, engine: str) -> None:
    source = source_of("with_dropout")
    short, long = (
        converter_of(chosen).convert(source.float_model(), chosen, source).model
        for chosen in (recipe(epochs=1), recipe(epochs=3, learning_rate=0.01))
    )
    inputs = source.example_inputs.values()
    assert not torch.equal(short(*inputs), long(*inputs))
    assert not work_of(source)


def test_frozen_ranges_and_statistics_do_not_move() -> None:
    training = recipe(epochs=2).training
    assert training is not None
    model = nn.Sequential(nn.BatchNorm1d(4))
    for epoch, moves in ((0, True), (1, False)):
        before = model[0].running_mean.clone()
        _to_training(model, training, epoch)
        model(torch.rand(8, 4) + 1)
        assert torch.equal(model[0].running_mean, before) is not moves
