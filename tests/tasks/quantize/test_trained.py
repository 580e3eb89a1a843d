from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tasks.quantize.graph import prepare
from tasks.quantize.methods import QatRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.trained import QatConverter

Sources = Callable[..., ModelSource]


def recipe(**changes: object) -> Spec:
    return spec_of(
        QatRecipe(name="qat", method="qat", **{"epochs": 1, "batch_size": 16, "learning_rate": 1e-3, **changes})
    )


def trainings(source: ModelSource) -> list[Path]:
    return list((source.workspace.store.root / "artifacts" / "fine-tuned").glob("*/*"))


@pytest.mark.parametrize(
    ("network", "keys"),
    [
        ("plain", {}), ("plain", {"weights": "per-tensor"}), ("plain", {"engine": "onednn"}), ("with_dropout", {}),
        ("Residual", {}), ("OwnStubs", {}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.slow
def test_it_computes_what_torchs_own_int8_does_and_is_trained_once(
    network: str, keys: dict[str, str], source_of: Sources, engine: str
) -> None:
    source, chosen = source_of(network), recipe(**keys)
    converted = QatConverter().convert(source.float_model(), chosen, source)
    before = trainings(source)
    reference = QatConverter().train(chosen, source)
    assert before == trainings(source)
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
        monkeypatch.setattr(prepare, "saturates", {"onednn": saturates}.get)
        QatConverter().train(recipe(engine="onednn", learning_rate=2e-3), source)
        trained.append(len(trainings(source)))
    assert trained[0] + 1 == trained[1]
