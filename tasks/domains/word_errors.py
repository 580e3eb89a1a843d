"""Word error rate: the edits that turn what a model recognizes into what was said, per word that was said."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from storage.errors import MeasurementError

_BLANK = 0


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
