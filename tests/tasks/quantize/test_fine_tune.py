"""Fine-tuning with a domain made up here: vectors whose target is their mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn.qat import Linear
from torch.ao.quantization import default_qat_qconfig_v2
from torch.nn.functional import mse_loss

from storage.errors import QuantizationError
from tasks.job import Progress, silent
from tasks.quantize.methods import QatRecipe
from tasks.quantize.spec import Training, spec_of
from tasks.quantize.trained import fine_tune

CPU = torch.device("cpu")


class Means:
    """Four batches an epoch; `scores` replaces what validation finds, one score and loss for each epoch."""

    steps_per_epoch = 4

    def __init__(self, scores: list[tuple[float, float]] | None = None) -> None:
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
        if self.scores:
            return self.scores[len(self.weights) - 1]
        vectors = torch.linspace(0, 1, 16).view(4, 4)
        loss = float(self.loss(model(vectors), vectors.mean(1, keepdim=True)))
        return -loss, loss


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Linear(4, 1, qconfig=default_qat_qconfig_v2))


def training(**changes: object) -> Training:
    found = spec_of(QatRecipe(name="qat", method="qat", **{"epochs": 4, "learning_rate": 0.05, **changes})).training
    assert found is not None
    return found


def tune(tuning: Means, progress: Progress = silent, **changes: object) -> Tensor:
    model = network()
    model(torch.linspace(-1, 1, 32).view(8, 4))  # the first ranges
    return fine_tune(model, "qat", training(**changes), tuning, CPU, progress)["0.weight"]


@pytest.mark.slow
def test_training_lowers_the_loss_and_reports_every_step() -> None:
    tuning, steps = Means(), []
    weight = tune(tuning, lambda done, total, unit="": steps.append((done, total, unit)))
    assert (weight - 0.25).abs().max() < (network().get_parameter("0.weight") - 0.25).abs().max()
    assert [(done, total) for done, total, _ in steps] == [(step, 16) for step in range(1, 17)]
    assert all(re.fullmatch(r"training batches, loss \d+\.\d{3}", unit) for _, _, unit in steps)


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
        tune(Means())
