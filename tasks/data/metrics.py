"""Metrics by name, with each row's contribution, or the metric for resamples, as paired comparisons require.

Int8 outputs often tie. Among classes with equal logits, the class with the smallest number ranks first, as in
``argmax``. Two equal scores, or two answers that are equally similar to a query, count as half ahead of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from storage.errors import MeasurementError
from tasks.data.constants import (
    always,
    constant_order,
    deviation,
    f1_of_most_frequent,
    most_frequent,
    unigram_loss,
    variance,
)
from tasks.data.scores import RatioScore, RowScore, Score, SetScore, Weighted, describe_target, require_classes
from tasks.paired import RIGHT
from tasks.results import Contributions

Labels = NDArray[np.generic]

_LARGEST_LOSS = math.log(torch.finfo(torch.float64).max)
_BLANK = 0
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


def macro_f1(prediction: Labels, target: Labels) -> Weighted:
    """Return a function of row weights: the mean of 2 TP / (2 TP + FP + FN) over all classes with a non-zero weight."""
    guess, truth = prediction.astype(np.int64), target.astype(np.int64)
    right, classes = guess == truth, int(max(guess.max(), truth.max())) + 1

    def value(weights: NDArray[np.int64]) -> float:
        hits = np.bincount(truth, weights * right, classes)
        sizes = np.bincount(truth, weights, classes) + np.bincount(guess, weights, classes)
        return float((2 * hits[sizes > 0] / sizes[sizes > 0]).mean())

    return value


def area_under_roc(score: Labels, target: Labels) -> Weighted:
    """Return a function of row weights: the probability that a row of class 1 scores higher than a row of class 0."""
    place, is_positive = np.unique(score, return_inverse=True)[1], target == 1
    values = int(place.max()) + 1

    def value(weights: NDArray[np.int64]) -> float:
        positive = np.bincount(place, weights * is_positive, values)
        negative = np.bincount(place, weights * ~is_positive, values)
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / pairs) if pairs else float("nan")

    return value


def _hits(outputs: Tensor, target: Tensor) -> Tensor:
    guess = predicted(outputs)
    require_classes(guess, target)
    return (guess == target).double() * RIGHT


def _strict_top5_hits(outputs: Tensor, target: Tensor) -> Tensor:
    require_classes(predicted(outputs), target)
    if outputs.dim() != 2 or outputs.shape[1] <= 5:
        raise _refusal(outputs, "top5 needs logits for more than five classes")
    return _top5_hits(outputs, target)


def _top1(outputs: Tensor) -> Tensor:
    return outputs.argmax(1)


def _top1_hits(outputs: Tensor, target: Tensor) -> Tensor:
    return (_top1(outputs) == target).double() * RIGHT


def _top5_hits(outputs: Tensor, target: Tensor) -> Tensor:
    # ``topk`` orders equal logits arbitrarily.
    top5 = outputs.argsort(dim=1, descending=True, stable=True)[:, :5]
    return (top5 == target[:, None]).any(1).double() * RIGHT


def reciprocal_ranks(queries: Tensor, answers: Tensor) -> Tensor:
    """Return the reciprocal rank, float64 [N], of each query's answer among all answers, by cosine similarity.

    Another answer that is as similar as the query's own answer adds one half to the rank, so an encoder that returns
    the same vector for every text gets a low value.
    """
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
    return torch.stack([losses.sum(1), (target != -100).reshape(rows, -1).sum(1)], dim=1)


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


def word_errors(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the number of edits and the number of target words for each row, float64 [B, 2].

    Outputs are word ids (int64 [B, T], padded with negative ids) or CTC logits (float [B, K, T]; class 0 is the blank),
    whose best path is decoded (Graves et al., "Connectionist temporal classification", 2006). Targets are word ids,
    int64 [B, L], padded with negative ids.
    """
    logits = outputs.is_floating_point()
    if outputs.dim() != (3 if logits else 2) or target.dim() != 2 or target.is_floating_point():
        raise _refusal(
            outputs,
            f"wer needs [rows, steps] or [rows, classes, steps], and int64 targets, not {describe_target(target)}",
        )
    guesses = [_best_path(row) for row in outputs.argmax(1).tolist()] if logits else _without_padding(outputs)
    rows = zip(guesses, _without_padding(target), strict=True)
    return torch.tensor(
        [[Levenshtein.distance(guess, truth), len(truth)] for guess, truth in rows], dtype=torch.float64
    )


def _best_path(classes: Sequence[int]) -> list[int]:
    previous = (_BLANK, *classes)
    return [current for current, last in zip(classes, previous, strict=False) if current not in (last, _BLANK)]


def _without_padding(rows: Tensor) -> list[list[int]]:
    return [[word for word in row if word >= 0] for row in rows.tolist()]


_HIT: Contributions = "right-or-wrong"
METRICS: Mapping[str, Score] = {
    score.name: score
    for score in (
        RowScore("accuracy", True, _hits, _HIT, predicted, constant=most_frequent(1)),
        RowScore("top5", True, _strict_top5_hits, _HIT, predicted, constant=most_frequent(5)),
        SetScore("f1-macro", True, predicted, macro_f1, "prediction", constant=f1_of_most_frequent),
        SetScore("auroc", True, scores, area_under_roc, "score", constant=always(0.5)),
        RowScore("loss", False, _losses, keeps_output=False, constant=unigram_loss),
        RowScore("mse", False, lambda outputs, target: _errors(outputs, target).square().mean(1), constant=variance),
        RowScore("mae", False, lambda outputs, target: _errors(outputs, target).abs().mean(1), constant=deviation),
        RatioScore("perplexity", False, _loss_parts, perplexity, constant=lambda *of: perplexity(unigram_loss(*of))),
        RatioScore("wer", False, word_errors, constant=always(1.0)),  # an empty answer
        # `sections.Metric` does not list the following metrics, because only particular domains use them.
        RowScore("top1", True, _top1_hits, _HIT, _top1, scale=RIGHT, constant=most_frequent(1)),
        RowScore("top5-of-any", True, _top5_hits, _HIT, scale=RIGHT, constant=most_frequent(5)),
        RowScore("cosine", True, lambda outputs, target: cosine_similarity(outputs.double(), target.double())),
        RowScore("retrieval", True, reciprocal_ranks, constant=constant_order),
    )
}
