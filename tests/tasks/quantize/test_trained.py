from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.ao.quantization import DeQuantStub, QuantStub

from storage.errors import QuantizationError
from tasks.quantize.graph import observers
from tasks.quantize.methods import Qat, QatRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.trained import Int8Weight, QatConverter, Rounded, round_passed_values

Sources = Callable[..., ModelSource]


def recipe(**changes: object) -> Spec:
    return spec_of(
        QatRecipe(name="qat", method="qat", **{"epochs": 1, "batch_size": 16, "learning_rate": 1e-3, **changes})
    )


def trainings(source: ModelSource) -> list[Path]:
    return list((source.workspace.store.root / "artifacts" / "fine-tuned").glob("*/*"))


@pytest.mark.parametrize("network", ["plain", "with_dropout", "Residual", "OwnStubs", "FunctionalHead"])
@pytest.mark.parametrize("keys", [{}, {"graph": "fx"}, {"weights": "per-tensor"}, {"engine": "onednn"}], ids=str)
@pytest.mark.slow
def test_it_computes_what_torchs_own_int8_does_and_is_trained_once(
    network: str, keys: dict[str, str], source_of: Sources, engine: str
) -> None:
    source, chosen = source_of(network), recipe(**keys)
    converted = Qat().converter().convert(source.float_model(), chosen, source)
    before = trainings(source)
    reference = QatConverter().train(chosen, source)
    assert before == trainings(source)
    assert reference.graph == converted.graph
    inputs = source.example_inputs.values()
    with torch.no_grad():
        found, expected = reference.model(*inputs), converted.model(*inputs)
    # A tie may be rounded the other way: a step, of which there are 127 at least.
    assert (found - expected).abs().max() <= 2 * (expected.max() - expected.min()) / 127
    assert not torch.equal(found, source.float_model()(*inputs))


def test_a_processor_whose_products_saturate_trains_for_a_range_of_its_own(
    source_of: Sources, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, trained = source_of("OwnStubs"), []
    for saturates in (False, True):
        monkeypatch.setattr(observers, "saturates", {"onednn": saturates}.get)
        QatConverter().train(recipe(engine="onednn", learning_rate=2e-3), source)
        trained.append(len(trainings(source)))
    assert trained[0] + 1 == trained[1]


@pytest.mark.parametrize("graph", ["eager", "fx"])
@pytest.mark.slow
def test_excluded_modules_stay_float_and_paths_are_the_float_models(
    graph: str, source_of: Sources, engine: str
) -> None:
    source = source_of()
    reference = QatConverter().train(recipe(graph=graph, exclude=("m0",)), source)
    int8 = {reference.paths[path] for path, part in reference.model.named_modules() if isinstance(part, Int8Weight)}
    assert int8 == {"m3", "m5", "m9", "m11"}
    assert reference.folded["m1"] == "m0"
    weights = {part.weight.dtype for part in reference.model.modules() if isinstance(part, Int8Weight)}
    assert weights == {torch.int8}


@pytest.mark.slow
def test_weights_of_the_models_own_that_a_function_gets_are_refused_in_one_line(
    source_of: Sources, engine: str
) -> None:
    with pytest.raises(QuantizationError, match=r"to a function cannot be exported.*torchscript") as caught:
        QatConverter().train(recipe(), source_of("Volumes"))
    assert "\n" not in str(caught.value)


class Borders(nn.Module):
    """Two stretches of rounded values with a float one between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.out = Rounded(0.5, 0), Rounded(0.25, 0), DeQuantStub()
        self.pool, self.float_pool, self.product = nn.AvgPool1d(2), nn.AvgPool1d(2), nn.Linear(2, 2)
        self.product.before = nn.Identity()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        inside = self.float_pool(self.out(self.pool(self.first(values))))
        return self.product(self.last(inside).flatten(1))


@pytest.mark.slow
def test_what_passes_rounded_values_on_is_rounded_to_the_same_range_and_nothing_else(engine: str) -> None:
    model = Borders()
    round_passed_values(model, [model.product], [torch.rand(3, 1, 8)])
    passed = {name: part.activation_post_process.step for name, part in model.named_children() if part._forward_hooks}
    assert passed == {"pool": model.first.step}
    assert isinstance(model.product.before, Rounded)
    assert model.product.before.step == model.last.step


@pytest.mark.slow
def test_a_module_with_several_ranges_is_left_as_it_is(engine: str) -> None:
    first, second, pool = Rounded(0.5, 0), Rounded(0.25, 0), nn.AvgPool1d(2)

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.pool, self.stub = first, second, pool, QuantStub()

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = self.stub(values)
            return self.pool(self.first(values)) + self.pool(self.second(values))

    round_passed_values(Shared(), [], [torch.rand(3, 1, 8)])
    assert not pool._forward_hooks
