"""Metrics by name: numbers of single rows whose mean is the quality, or one number of all rows together.

They are written here rather than taken from torchmetrics or scikit-learn, which give the number of a set: the paired
interval of a difference needs what each row contributes, or the number of a thousand resamples. Each is a few lines,
which tests hold against its definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from storage.errors import MeasurementError
from tasks.domains.word_errors import word_errors
from tasks.outputs import tensors_of
from tasks.paired import RIGHT
from tasks.results import Contributions

RESAMPLES = 1000
_LARGEST_LOSS = 700.0

Weighted = Callable[[NDArray[np.generic], NDArray[np.generic], NDArray[np.int64]], float]


@dataclass(frozen=True)
class RowMetric:
    """A mean over rows: ``rows`` gives float64 [B] for outputs and targets of B rows."""

    rows: Callable[[Tensor, Tensor], Tensor]
    contributions: Contributions = "independent"
    prediction: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class SetMetric:
    """A number of a whole set: ``reduce`` keeps of the outputs what ``value`` needs of them, [B] for B rows.

    ``value`` takes what was kept, the targets, and how often each row counts, all [N].
    """

    reduce: Callable[[Tensor], Tensor]
    value: Weighted
    prediction: bool = False


@dataclass(frozen=True)
class RatioMetric:
    """A ratio of sums over rows: ``parts`` gives float64 [B, 2], above and below the line, ``value`` what it means."""

    parts: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[float], float] = float

    def of(self, parts: NDArray[np.float64]) -> float:
        """The metric of rows, from their parts [N, 2]; NaN where there is nothing below the line."""
        above, below = parts.sum(0).tolist()
        return self.value(above / below) if below else float("nan")


def checked_outputs(result: object, rows: int) -> Tensor:
    """A model's first output for `rows` rows, which are its first axis.

    Raises
    ------
    MeasurementError
        It holds NaN or infinities, or has another number of rows.
    QuantizationError
        The model returns no tensors.
    """
    outputs = tensors_of(result)[0]
    if not outputs.dim() or len(outputs) != rows:
        raise MeasurementError(
            f"the model returns a tensor of shape {list(outputs.shape)} for {rows} rows.",
            hint="Its first output's first axis is that of the rows.",
        )
    if outputs.is_floating_point() and not outputs.isfinite().all():
        raise MeasurementError(
            "the model returns NaN or infinities.",
            hint="Exclude the module that overflows (`exclude`), or look at the checkpoint.",
        )
    return outputs


def resampled(value: Callable[[NDArray[np.int64]], float], samples: int) -> Tensor:
    """A metric of `RESAMPLES` resamples of the rows, float64 [R]; every candidate has the same resamples.

    `value` takes the rows drawn, int64 [N].
    """
    rng = np.random.default_rng(0)
    return torch.tensor([value(rng.integers(samples, size=samples)) for _ in range(RESAMPLES)], dtype=torch.float64)


def predicted(outputs: Tensor) -> Tensor:
    """Classes, int64 [B], of logits [B, K]; of one logit a row, [B] or [B, 1], whether it is above 0."""
    single = _one_a_row(outputs)
    if single is not None:
        return (single > 0).long()
    if outputs.dim() != 2:
        raise MeasurementError(
            f"the model returns logits of shape {list(outputs.shape)}, not [rows, classes].",
            hint="Let forward return one row of logits for each row of the input.",
        )
    return outputs.argmax(1)


def scores(outputs: Tensor) -> Tensor:
    """How much speaks for class 1, [B]: one logit a row, or the second of two less the first."""
    single = _one_a_row(outputs)
    if single is not None:
        return single
    if outputs.dim() != 2 or outputs.shape[1] != 2:
        raise MeasurementError(
            f"the model returns outputs of shape {list(outputs.shape)}; auroc needs one score a row, or two logits.",
            hint="Choose f1-macro or accuracy for more than two classes.",
        )
    return outputs[:, 1].double() - outputs[:, 0].double()


def macro_f1(prediction: NDArray[np.generic], target: NDArray[np.generic], weights: NDArray[np.int64]) -> float:
    """Mean over classes of 2 TP / (2 TP + FP + FN); classes that neither was predicted nor is there do not count."""
    guess, truth = prediction.astype(np.int64), target.astype(np.int64)
    classes = int(max(guess.max(), truth.max())) + 1
    confusion = np.bincount(truth * classes + guess, weights, classes * classes).reshape(classes, classes)
    hits, sizes = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    return float((2 * hits[sizes > 0] / sizes[sizes > 0]).mean())


def area_under_roc(score: NDArray[np.generic], target: NDArray[np.generic], weights: NDArray[np.int64]) -> float:
    """Probability that a row of class 1 scores higher than one of class 0, ties half: Mann and Whitney's statistic.

    NaN where the rows that count are all of one class.
    """
    values, place = np.unique(score, return_inverse=True)
    positive = np.bincount(place, weights * (target == 1), len(values))
    negative = np.bincount(place, weights * (target != 1), len(values))
    pairs = positive.sum() * negative.sum()
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs else float("nan")


def _right(outputs: Tensor, target: Tensor) -> Tensor:
    guess = predicted(outputs)
    _need_classes(guess, target)
    return (guess == target).double() * RIGHT


def _among_five(outputs: Tensor, target: Tensor) -> Tensor:
    guess = predicted(outputs)
    _need_classes(guess, target)
    if outputs.dim() != 2 or outputs.shape[1] <= 5:
        raise MeasurementError(
            f"the model returns outputs of shape {list(outputs.shape)}; top5 needs logits of more than five classes.",
            hint="Choose accuracy.",
        )
    return (outputs.topk(5).indices == target[:, None]).any(1).double() * RIGHT


def _losses(outputs: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, of a row with several targets the mean of those that count (-100 does not)."""
    sums, counts = _loss_parts(outputs, target).unbind(1)
    return sums / counts.clamp(min=1)


def _loss_parts(outputs: Tensor, target: Tensor) -> Tensor:
    """Sum of the cross-entropies of a row's targets that count, and how many do: float64 [B, 2]."""
    expected = outputs.shape[:1] + outputs.shape[2:]
    if outputs.dim() < 2 or target.shape != expected or target.is_floating_point():
        raise MeasurementError(
            f"the model returns logits of shape {list(outputs.shape)} for {_described(target)}.",
            hint="Cross-entropy takes logits [rows, classes, …] and int64 targets [rows, …].",
        )
    if int(target.max()) >= outputs.shape[1]:
        raise MeasurementError(
            f"the model returns {outputs.shape[1]} logits, and the data has class {int(target.max())}.",
            hint="Correct model.arguments.",
        )
    rows = len(target)
    each = cross_entropy(outputs.double(), target, reduction="none").reshape(rows, -1)
    return torch.stack([each.sum(1), (target != -100).reshape(rows, -1).sum(1)], dim=1)


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats, infinite where that is beyond all numbers."""
    return math.exp(loss) if loss < _LARGEST_LOSS else math.inf


def _errors(outputs: Tensor, target: Tensor) -> Tensor:
    if outputs.shape != target.shape:
        single = _one_a_row(outputs)
        if single is None or single.shape != target.shape:
            raise MeasurementError(
                f"the model returns outputs of shape {list(outputs.shape)} for {_described(target)}.",
                hint="Give both the same shape.",
            )
        outputs = single
    return (outputs.double() - target.double()).reshape(len(target), -1)


def _one_a_row(outputs: Tensor) -> Tensor | None:
    if outputs.dim() == 1:
        return outputs
    return outputs[:, 0] if outputs.dim() == 2 and outputs.shape[1] == 1 else None


def _need_classes(guess: Tensor, target: Tensor) -> None:
    if target.shape != guess.shape or target.is_floating_point():
        raise MeasurementError(
            f"the metric needs a class a row, int64 [rows], and the data has {_described(target)}.",
            hint="Correct the targets, or choose another evaluate.metric.",
        )


def _described(target: Tensor) -> str:
    return f"targets of shape {list(target.shape)}, {str(target.dtype).removeprefix('torch.')}"


METRICS: Mapping[str, RowMetric | SetMetric | RatioMetric] = {
    "accuracy": RowMetric(_right, "right-or-wrong", predicted),
    "top5": RowMetric(_among_five, "right-or-wrong", predicted),
    "loss": RowMetric(_losses),
    "mse": RowMetric(lambda outputs, target: _errors(outputs, target).square().mean(1)),
    "mae": RowMetric(lambda outputs, target: _errors(outputs, target).abs().mean(1)),
    "f1-macro": SetMetric(predicted, macro_f1, prediction=True),
    "auroc": SetMetric(scores, area_under_roc),
    "perplexity": RatioMetric(_loss_parts, perplexity),
    "wer": RatioMetric(word_errors),
}


def need_classes(kept: Tensor, target: Tensor) -> None:
    """Refuse targets of which a set metric by name can make nothing, with a `MeasurementError`."""
    _need_classes(torch.empty(len(kept)), target)
