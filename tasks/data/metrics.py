"""Metrics by name, with each row's contribution, or the metric for resamples, as paired comparisons require.

Among classes with equal logits, the class with the smallest number ranks first, as in ``argmax``. Two equal scores, or
two answers that are equally similar to a query, count as half ahead of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from storage.errors import MeasurementError
from tasks.data.paired import RIGHT
from tasks.data.samples import IGNORED
from tasks.data.scores import Columns, RowScore, Score, SetScore, Weighted, describe_target, require_classes

_LARGEST_LOSS = math.log(torch.finfo(torch.float64).max)
# Largest difference between the cosine similarities of two answers that tie. The float32 vectors of identical texts can
# differ by rounding errors.
_EQUAL = 1e-6
_SIMILARITIES = 1 << 22  # number of similarities to compute at once, 32 MB


def _refusal(outputs: Tensor, needed: str) -> MeasurementError:
    return MeasurementError(
        f"the model returns outputs of shape {list(outputs.shape)}, but {needed}.",
        hint="Correct the model or the targets, or choose another evaluate.metric.",
    )


def predicted(outputs: Tensor) -> Tensor:
    """Return the predicted classes, int64 [B], for logits [B, K], or for single logits (1 if positive)."""
    single = _single_column(outputs)
    if single is not None:
        return (single > 0).long()
    if outputs.dim() != 2:
        raise _refusal(outputs, "accuracy needs one row of logits for each input row")
    return outputs.argmax(1)


def scores(outputs: Tensor) -> Tensor:
    """Return scores for class 1, [B]: either the single logit, or the second logit minus the first."""
    single = _single_column(outputs)
    if single is not None:
        return single
    if outputs.dim() != 2 or outputs.shape[1] != 2:
        raise _refusal(outputs, "auroc needs one score or two logits per row")
    return outputs[:, 1].double() - outputs[:, 0].double()


def macro_f1(classes: Columns) -> Weighted:
    """Return a function of row weights: the mean of 2 TP / (2 TP + FP + FN) over all classes with a non-zero weight."""
    guess, truth = classes.astype(np.int64).T
    right, count = guess == truth, int(classes.max()) + 1

    def value(weights: NDArray[np.int64]) -> float:
        hits = np.bincount(truth, weights * right, count)
        sizes = np.bincount(truth, weights, count) + np.bincount(guess, weights, count)
        return float((2 * hits[sizes > 0] / sizes[sizes > 0]).mean())

    return value


def area_under_roc(scored: Columns) -> Weighted:
    """Return a function of row weights: the probability that a row of class 1 scores higher than a row of class 0."""
    place, is_positive = np.unique(scored[:, 0], return_inverse=True)[1], scored[:, 1] == 1
    values = int(place.max()) + 1

    def value(weights: NDArray[np.int64]) -> float:
        positive = np.bincount(place, weights * is_positive, values)
        negative = np.bincount(place, weights * ~is_positive, values)
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / pairs) if pairs else float("nan")

    return value


def perplexity_of(parts: Columns) -> Weighted:
    """Return a function of row weights: the perplexity for rows' total losses and numbers of targets."""

    def value(weights: NDArray[np.int64]) -> float:
        loss, targets = (weights @ parts).tolist()
        return perplexity(loss / targets) if targets else float("nan")

    return value


def _classes(outputs: Tensor, target: Tensor) -> Tensor:
    guess = predicted(outputs)
    require_classes(guess, target)
    return torch.stack([guess.double(), target.double()], dim=1)


def _scored(outputs: Tensor, target: Tensor) -> Tensor:
    score = scores(outputs)
    require_classes(score, target)
    return torch.stack([score.double(), target.double()], dim=1)


def _hits(outputs: Tensor, target: Tensor) -> Tensor:
    guess = predicted(outputs)
    require_classes(guess, target)
    return (guess == target).double() * RIGHT


def _top5_hits(outputs: Tensor, target: Tensor) -> Tensor:
    require_classes(predicted(outputs), target)
    if outputs.dim() != 2:
        raise _refusal(outputs, "top5 needs one row of logits for each input row")
    # ``topk`` orders equal logits arbitrarily.
    top5 = outputs.argsort(dim=1, descending=True, stable=True)[:, :5]
    return (top5 == target[:, None]).any(1).double() * RIGHT


def reciprocal_ranks(queries: Tensor, answers: Tensor) -> Tensor:
    """Return the reciprocal rank, float64 [N], of each query's answer among all answers, by cosine similarity."""
    queries, answers = normalize(queries.double(), dim=1), normalize(answers.double(), dim=1)
    ranks, step = [], max(1, _SIMILARITIES // len(answers))
    # Compare a block of queries at a time, because N × N similarities may not fit in memory.
    for start in range(0, len(queries), step):
        lead = queries[start : start + step] @ answers.T
        lead -= lead.diagonal(start).unsqueeze(1).clone()
        ahead, not_behind = (lead > _EQUAL).sum(1), (lead >= -_EQUAL).sum(1)  # the own answer is not behind itself
        ranks.append((1 + ahead + not_behind) / 2)
    return 1 / torch.cat(ranks).double()


def _losses(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of each row's targets, ignoring targets equal to ``-100``."""
    sums, counts = _loss_parts(outputs, target).unbind(1)
    return sums / counts.clamp(min=1)


def _loss_parts(outputs: Tensor, target: Tensor) -> Tensor:
    """Return each row's total cross-entropy and number of targets, float64 [B, 2], ignoring targets equal to -100."""
    expected = outputs.shape[:1] + outputs.shape[2:]
    if outputs.dim() < 2 or target.shape != expected or target.is_floating_point():
        raise _refusal(
            outputs, f"[rows, classes, …] is needed for int64 targets [rows, …], not {describe_target(target)}"
        )
    if int(target.max()) >= outputs.shape[1]:
        raise _refusal(outputs, f"the data contains class {int(target.max())}")
    rows = len(target)
    losses = cross_entropy(outputs.double(), target, reduction="none").reshape(rows, -1)
    return torch.stack([losses.sum(1), (target != IGNORED).reshape(rows, -1).sum(1)], dim=1)


def perplexity(loss: float) -> float:
    """Return the exponential of a mean loss in nats, or infinity if float64 would overflow."""
    return math.exp(loss) if loss < _LARGEST_LOSS else math.inf


def _errors(outputs: Tensor, target: Tensor) -> Tensor:
    if outputs.shape != target.shape:
        single = _single_column(outputs)
        if single is None or single.shape != target.shape:
            raise _refusal(outputs, f"the data has {describe_target(target)}")
        outputs = single
    return (outputs.double() - target.double()).reshape(len(target), -1)


def _single_column(outputs: Tensor) -> Tensor | None:
    if outputs.dim() == 1:
        return outputs
    return outputs[:, 0] if outputs.dim() == 2 and outputs.shape[1] == 1 else None


# The quality of the best constant answer, from the targets of all batches and the number of classes that the model can
# predict: a model that ignores its input can reach this quality.


def most_frequent(most: int) -> Callable[[Sequence[Tensor], int], float]:
    """Return the percentage of rows that have one of the `most` most frequent classes."""
    return lambda targets, classes: 100 * _shares(targets)[:most].sum().item()


def f1_of_most_frequent(targets: Sequence[Tensor], classes: int) -> float:
    """Return the macro F1 score for always answering the most frequent class."""
    shares = _shares(targets)
    largest = shares[0].item()
    return 2 * largest / (1 + largest) / len(shares)


def unigram_loss(targets: Sequence[Tensor], classes: int) -> float:
    """Return the mean cross-entropy, in nats, of predicting each target from the frequencies of the other targets."""
    # Laplace's rule of succession: one added count per class.
    counts = _counts(targets).double()
    total = counts.sum().item()
    loss = math.log(total - 1 + classes) - (counts * counts.log()).sum().item() / total if total else math.inf
    return min(loss, math.log(classes))


def variance(targets: Sequence[Tensor], classes: int) -> float:
    """Return the mean squared error for always answering the mean target."""
    rows = _rows(targets)
    return (rows - rows.mean(0)).square().mean().item()


def deviation(targets: Sequence[Tensor], classes: int) -> float:
    """Return the mean absolute error for always answering the median target."""
    rows = _rows(targets)
    return (rows - rows.median(0).values).abs().mean().item()


def constant_order(targets: Sequence[Tensor], classes: int) -> float:
    """Return the mean reciprocal rank if every query ranks the answers in the same order."""
    answers = sum(map(len, targets))
    return (1 / torch.arange(1, answers + 1, dtype=torch.float64)).mean().item()


def _counts(targets: Sequence[Tensor]) -> Tensor:
    """Return the number of targets in each class that occurs, in descending order."""
    values = torch.cat([target.flatten() for target in targets])
    counts: Tensor = torch.unique(values[values != IGNORED], return_counts=True)[1]
    return counts.sort(descending=True).values


def _shares(targets: Sequence[Tensor]) -> Tensor:
    counts = _counts(targets).double()
    return counts / counts.sum()


def _rows(targets: Sequence[Tensor]) -> Tensor:
    """Return one row of numbers per target, or one number per row if the targets differ in shape."""
    alike = len({target.shape[1:] for target in targets}) == 1
    return torch.cat([target.reshape((len(target), -1) if alike else (-1, 1)) for target in targets]).double()


METRICS: Mapping[str, Score] = {
    score.name: score
    for score in (
        RowScore("accuracy", True, _hits, predicted, is_percentage=True, constant=most_frequent(1)),
        RowScore("top5", True, _top5_hits, predicted, is_percentage=True, constant=most_frequent(5)),
        SetScore("f1-macro", True, _classes, macro_f1, "prediction", constant=f1_of_most_frequent),
        SetScore("auroc", True, _scored, area_under_roc, constant=lambda targets, classes: 0.5),
        RowScore("loss", False, _losses, keeps_output=False, constant=unigram_loss),
        RowScore("mse", False, lambda outputs, target: _errors(outputs, target).square().mean(1), constant=variance),
        RowScore("mae", False, lambda outputs, target: _errors(outputs, target).abs().mean(1), constant=deviation),
        SetScore("perplexity", False, _loss_parts, perplexity_of, constant=lambda *of: perplexity(unigram_loss(*of))),
        # `sections.Metric` does not list the following metrics, because only particular domains use them.
        RowScore("top1", True, _hits, predicted, is_percentage=True, constant=most_frequent(1)),
        RowScore("cosine", True, lambda outputs, target: cosine_similarity(outputs.double(), target.double())),
        RowScore("retrieval", True, reciprocal_ranks, constant=constant_order),
    )
}
