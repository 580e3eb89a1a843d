"""The quality of the best constant answer: a model that ignores its input can reach this quality.

Each function takes the targets of all batches and the number of classes that the model can predict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Constant = Callable[[Sequence[Tensor], int], float]
_IGNORED = -100  # targets with this value do not count


def most_frequent(most: int) -> Constant:
    """Return the percentage of rows that have one of the `most` most frequent classes."""
    return lambda targets, classes: 100 * _shares(targets)[:most].sum().item()


def f1_of_most_frequent(targets: Sequence[Tensor], classes: int) -> float:
    """Return the macro F1 score for always answering the most frequent class."""
    shares = _shares(targets)
    largest = shares[0].item()
    return 2 * largest / (1 + largest) / len(shares)


def unigram_loss(targets: Sequence[Tensor], classes: int) -> float:
    """Return the mean cross-entropy, in nats, of predicting each target from the frequencies of the other targets.

    The frequencies are estimated with one added count per class (Laplace's rule of succession); the result is at most
    the loss of a uniform distribution. Targets equal to -100 are ignored.
    """
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


def always(value: float) -> Constant:
    """Return a constant answer's quality that does not depend on the targets."""
    return lambda targets, classes: value


def _counts(targets: Sequence[Tensor]) -> Tensor:
    """Return the number of targets in each class that occurs, in descending order."""
    values = torch.cat([target.flatten() for target in targets])
    counts: Tensor = torch.unique(values[values != _IGNORED], return_counts=True)[1]
    return counts.sort(descending=True).values


def _shares(targets: Sequence[Tensor]) -> Tensor:
    counts = _counts(targets).double()
    return counts / counts.sum()


def _rows(targets: Sequence[Tensor]) -> Tensor:
    """Return one row of numbers per target, or one number per row if the targets differ in shape."""
    alike = len({target.shape[1:] for target in targets}) == 1
    return torch.cat([target.reshape((len(target), -1) if alike else (-1, 1)) for target in targets]).double()
