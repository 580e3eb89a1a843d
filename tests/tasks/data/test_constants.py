"""The quality of the best constant answer is the best quality that any constant output reaches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tasks.data.evaluation import evaluate_batches
from tasks.data.metrics import METRICS
from tasks.data.samples import Batch
from tasks.values.refs import ArtifactRef
from tasks.values.results import Evaluation

CLASSES = torch.tensor([2, 0, 2, 1, 2, 6, 0, 2, 4, 5, 3])
NUMBERS = torch.tensor([[1.0, 40.0], [2.0, 10.0], [6.0, 10.0], [6.5, 30.0]])


def batches(target: Tensor) -> list[Batch]:
    return [Batch((part,), part, len(part)) for part in target.split(4)]


def constant_of(metric: str, target: Tensor, width: int) -> float | None:
    outputs = torch.randn(len(target), *[width] * bool(width))
    quality = evaluate_batches(
        lambda part: outputs[: len(part)] if width else part.flip(0).float(),
        batches(target), METRICS[metric], total=len(target), singly=False,
    )  # fmt: skip
    return quality.constant


def reached(metric: str, answer: Tensor, target: Tensor) -> float:
    """The quality of one answer for all rows."""
    outputs = answer.expand(len(target), *answer.shape)
    calls = batches(target)
    return evaluate_batches(
        lambda part: outputs[: len(part)], calls, METRICS[metric], total=len(target), singly=False
    ).value


@pytest.mark.parametrize("metric", ["top1", "top5", "f1-macro"])
def test_no_constant_class_is_better(metric: str) -> None:
    answers = [torch.eye(7)[order] for order in ([0], [1], [2], [3], [4], [5], [6])]
    best = max(reached(metric, answer[0], CLASSES) for answer in answers)
    assert constant_of(metric, CLASSES, 7) == pytest.approx(best)


@pytest.mark.parametrize("metric", ["mse", "mae"])
def test_no_constant_number_is_better(metric: str) -> None:
    grid = torch.cartesian_prod(torch.arange(0, 8, 0.125), torch.arange(0, 50, 1.25))
    best = min(reached(metric, answer, NUMBERS) for answer in grid)
    assert constant_of(metric, NUMBERS, 0) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize(("metric", "number"), [("loss", float), ("perplexity", math.exp)])
def test_the_frequencies_are_the_best_constant_distribution_of_many_targets(metric: str, number: type) -> None:
    many = CLASSES.repeat(1000)
    frequencies = CLASSES.bincount(minlength=7) / len(CLASSES)
    expected = -(frequencies * frequencies.log()).sum().item()
    constant = METRICS[metric].constant
    assert constant is not None
    assert constant([many], 7) == pytest.approx(number(expected), rel=1e-3)
    assert constant([torch.full((5, 2), -100), many], 7) == pytest.approx(number(expected), rel=1e-3)
    # A few targets show nothing about the frequencies of many classes.
    assert constant([torch.arange(20)], 5000) == pytest.approx(5000 if metric == "perplexity" else math.log(5000))
    assert constant_of(metric, CLASSES, 7) == constant([CLASSES], 7)


def test_the_other_metrics_have_a_fixed_constant_or_none() -> None:
    assert constant_of("auroc", torch.arange(8) % 2, 2) == 0.5
    assert constant_of("cosine", NUMBERS, 2) is None
    assert METRICS["retrieval"].constant is not None
    assert METRICS["retrieval"].constant([torch.zeros(4, 2)], 0) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize(("constant", "beats"), [(None, True), (0.4, True), (0.5, False), (0.6, False)])
def test_an_equally_good_constant_answer_is_not_beaten(
    constant: float | None, beats: bool, higher_is_better: bool
) -> None:
    sign = 1 if higher_is_better else -1
    evaluation = Evaluation(
        recipe="float", runtime="eager", quality_metric="own", quality=0.5 * sign, quality_batched=0.5 * sign,
        higher_is_better=higher_is_better, metrics={}, samples=1, outputs=ArtifactRef(kind="outputs", digest="a"),
        constant_quality=None if constant is None else constant * sign,
    )  # fmt: skip
    assert evaluation.beats_constant is beats
