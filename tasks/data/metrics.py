"""Metrics by name, and what computes each.

They are written here rather than taken from torchmetrics or scikit-learn, which give the number of a set: the paired
interval of a difference needs what each row contributes, or the number of a thousand resamples. Each is a few lines,
which tests check against its definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from storage.errors import MeasurementError
from tasks.data.scores import RatioScore, RowScore, Score, SetScore, described, need_classes
from tasks.paired import RIGHT
from tasks.results import Contributions

_LARGEST_LOSS = math.log(torch.finfo(torch.float64).max)
_BLANK = 0


def predicted(outputs: Tensor) -> Tensor:
    """Return classes, int64 [B], of logits [B, K]; of one logit a row, [B] or [B, 1], whether it is above 0."""
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
    need_classes(guess, target)
    return (guess == target).double() * RIGHT


def _among_five(outputs: Tensor, target: Tensor) -> Tensor:
    need_classes(predicted(outputs), target)
    if outputs.dim() != 2 or outputs.shape[1] <= 5:
        raise MeasurementError(
            f"the model returns outputs of shape {list(outputs.shape)}; top5 needs logits of more than five classes.",
            hint="Choose accuracy.",
        )
    return (outputs.topk(5).indices == target[:, None]).any(1).double() * RIGHT


def _best(outputs: Tensor) -> Tensor:
    """The classes of the five largest logits, or of all where there are fewer: int64 [B, 5]."""
    return outputs.topk(min(5, outputs.shape[1]), dim=1).indices


def _first_choice(outputs: Tensor) -> Tensor:
    return _best(outputs)[:, 0]


def _right_at_once(outputs: Tensor, target: Tensor) -> Tensor:
    return (_first_choice(outputs) == target) * RIGHT


def _right_in_five(outputs: Tensor, target: Tensor) -> Tensor:
    return (_best(outputs) == target[:, None]).any(1) * RIGHT


def reciprocal_ranks(queries: Tensor, answers: Tensor) -> Tensor:
    """1 ÷ rank of each query's own answer among all, by cosine: from float [N, H] twice to float64 [N].

    The mean is the mean reciprocal rank. Answers as near as the own one do not count against it.
    """
    likeness = normalize(queries.double(), dim=1) @ normalize(answers.double(), dim=1).T
    # Equal texts give vectors that differ by rounding.
    ahead = (likeness > likeness.diagonal().unsqueeze(1) + 1e-9).sum(1)
    return 1.0 / (1 + ahead).double()


def _losses(outputs: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, of a row with several targets the mean of those that count (-100 does not)."""
    sums, counts = _loss_parts(outputs, target).unbind(1)
    return sums / counts.clamp(min=1)


def _loss_parts(outputs: Tensor, target: Tensor) -> Tensor:
    """Sum of the cross-entropies of a row's targets that count, and how many do: float64 [B, 2]."""
    expected = outputs.shape[:1] + outputs.shape[2:]
    if outputs.dim() < 2 or target.shape != expected or target.is_floating_point():
        raise MeasurementError(
            f"the model returns logits of shape {list(outputs.shape)} for {described(target)}.",
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
                f"the model returns outputs of shape {list(outputs.shape)} for {described(target)}.",
                hint="Give both the same shape.",
            )
        outputs = single
    return (outputs.double() - target.double()).reshape(len(target), -1)


def _one_a_row(outputs: Tensor) -> Tensor | None:
    if outputs.dim() == 1:
        return outputs
    return outputs[:, 0] if outputs.dim() == 2 and outputs.shape[1] == 1 else None


def word_errors(outputs: Tensor, target: Tensor) -> Tensor:
    """Edits and words of each row: float64 [B, 2].

    Parameters
    ----------
    outputs
        Word ids, int64 [B, T], negative ones for none; or CTC's logits, float [B, K, T], of which each step's best
        class counts: repeats once, class 0 (the blank) not at all. Source: Graves et al., "Connectionist temporal
        classification", 2006, best path decoding.
    target
        Word ids, int64 [B, L], negative ones for none.

    Raises
    ------
    MeasurementError
        They are something else.
    """
    logits = outputs.is_floating_point()
    if outputs.dim() != (3 if logits else 2) or target.dim() != 2 or target.is_floating_point():
        raise MeasurementError(
            f"the model returns outputs of shape {list(outputs.shape)} for targets of shape {list(target.shape)}.",
            hint="wer takes word ids [rows, steps] or logits [rows, classes, steps], and int64 targets [rows, words].",
        )
    guesses = [_best_path(row) for row in outputs.argmax(1).tolist()] if logits else _counted(outputs)
    rows = zip(guesses, _counted(target), strict=True)
    return torch.tensor([[edit_distance(guess, truth), len(truth)] for guess, truth in rows], dtype=torch.float64)


def edit_distance(guess: Sequence[int], truth: Sequence[int]) -> int:
    """Fewest insertions, deletions and substitutions between two sequences.

    Source: Wagner and Fischer, "The string-to-string correction problem", 1974.
    """
    above = list(range(len(truth) + 1))
    for row, one in enumerate(guess, start=1):
        here = [row]
        for column, other in enumerate(truth, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (one != other)))
        above = here
    return above[-1]


def _best_path(classes: Sequence[int]) -> list[int]:
    before = (_BLANK, *classes)
    return [each for each, last in zip(classes, before, strict=False) if each not in (last, _BLANK)]


def _counted(rows: Tensor) -> list[list[int]]:
    return [[each for each in row if each >= 0] for row in rows.tolist()]


_HIT: Contributions = "right-or-wrong"
METRICS: Mapping[str, Score] = {
    score.name: score
    for score in (
        RowScore("accuracy", True, _right, _HIT, predicted),
        RowScore("top5", True, _among_five, _HIT, predicted),
        SetScore("f1-macro", True, predicted, macro_f1, "prediction"),
        SetScore("auroc", True, scores, area_under_roc, "score"),
        RowScore("loss", False, _losses, keeps_output=False),
        RowScore("mse", False, lambda outputs, target: _errors(outputs, target).square().mean(1)),
        RowScore("mae", False, lambda outputs, target: _errors(outputs, target).abs().mean(1)),
        RatioScore("perplexity", False, _loss_parts, perplexity),
        RatioScore("wer", False, word_errors),
        # Those that a domain names; the others are `tasks.data.sections.Metric`.
        RowScore("top1", True, _right_at_once, _HIT, _first_choice, scale=RIGHT),
        RowScore("top5-of-any", True, _right_in_five, _HIT, scale=RIGHT),
        RowScore("cosine", True, lambda outputs, target: cosine_similarity(outputs.double(), target.double())),
        RowScore("retrieval", True, reciprocal_ranks),
    )
}
