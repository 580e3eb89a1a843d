from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn.qat import Linear
from torch.ao.quantization import default_qat_qconfig_v2
from torch.nn.functional import mse_loss

from storage.errors import QuantizationError
from tasks.quantize.graph import prepare
from tasks.quantize.methods import QatRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, Training, spec_of
from tasks.quantize.trained import QatConverter, fine_tune
from tasks.values.job import silent

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
def test_a_trained_candidate_computes_like_torchs_own_int8_and_is_trained_once(
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


class Means:
    """Four batches an epoch; `scores` replaces what validation finds, one score and loss for each epoch."""

    steps_per_epoch = 4

    def __init__(self, scores: list[tuple[float, float]]) -> None:
        self.scores = scores
        self.weights: list[Tensor] = []

    def batches(self, generator: torch.Generator) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        for _ in range(self.steps_per_epoch):
            vectors = torch.rand(8, 4, generator=generator)
            yield (vectors,), vectors.mean(1, keepdim=True)

    def loss(self, outputs: object, target: Tensor) -> Tensor:
        assert isinstance(outputs, Tensor)
        return mse_loss(outputs, target)

    def validate(self, model: nn.Module, device: torch.device) -> tuple[float, float]:
        assert not model.training
        self.weights.append(model.get_parameter("0.weight").detach().clone())
        return self.scores[len(self.weights) - 1]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Linear(4, 1, qconfig=default_qat_qconfig_v2))


def training() -> Training:
    found = spec_of(QatRecipe(name="qat", method="qat", epochs=4, learning_rate=0.05)).training
    assert found is not None
    return found


def tune(tuning: Means) -> Tensor:
    model = network()
    model(torch.linspace(-1, 1, 32).view(8, 4))  # the first ranges
    return fine_tune(model, "qat", training(), tuning, torch.device("cpu"), silent)["0.weight"]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(1, 9), (3, 9), (2, 1), (3, 9)], 1),
        ([(1, 9), (1, 8), (1, 7), (1, 8)], 2),
        ([(float("nan"), 1)] * 4, 0),
    ],
    ids=["score", "loss where scores are equal", "nothing comparable"],
)
def test_the_best_epoch_is_kept(scores: list[tuple[float, float]], best: int) -> None:
    tuning = Means(scores)
    assert torch.equal(tune(tuning), tuning.weights[best])


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Means, "loss", lambda self, outputs, target: outputs.sum() / 0)
    with pytest.raises(QuantizationError, match=r"diverged in epoch.*learning_rate"):
        tune(Means([]))
