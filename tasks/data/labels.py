"""Number classes, and compare the numbers with the outputs of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from storage.errors import InputError, MeasurementError, did_you_mean
from tasks.data.samples import Description

# Metrics of `tasks.data.metrics.METRICS` that compare outputs with class numbers.
OF_CLASSES = frozenset({"accuracy", "top5", "f1-macro", "auroc", "loss", "perplexity"})
_MOST_LINES, LONGEST_LINE = 10, 200
SORTED = "the classes found, in sorted order; the order must be that of the model's outputs"


def numbered(found: Collection[str], stated: Sequence[str], source: str, key: str = "data.classes") -> tuple[str, ...]:
    """Return the class names, indexed by class number: `stated` or, by default, the found names in sorted order."""
    if stated and (unknown := sorted(set(found) - set(stated))):
        raise InputError(
            f"{source} contains classes that {key} lacks: {_listed(unknown)}{did_you_mean(unknown[0], stated)}.",
            hint=f"Correct these labels, or add the classes to {key} in the order of the model's outputs.",
        )
    return tuple(stated or sorted(found))


def absence_note(classes: Sequence[str], found: Collection[str]) -> tuple[str, ...]:
    """Return a note about classes without samples, or ``()`` if there are none."""
    absent = [name for name in classes if name not in found]
    return (f"these classes have no samples: {_listed(absent)}",) if absent else ()


def check_labels(outputs: Tensor, data: Description, *, named: bool) -> None:
    """Compare the data's classes with a model's class scores, [B, K, …], or a binary classifier's, [B] or [B, 1].

    `named` says whether the class names must be as many as the scores.
    """
    several = outputs.dim() > 1 and outputs.shape[1] > 1
    count = outputs.shape[1] if several else 2
    returned = f"the model returns {count} logits per row" if several else "the model returns one score per row"
    if named and data.classes and len(data.classes) != count:
        raise MeasurementError(
            f"{returned}, but the data has {len(data.classes)} classes: {_listed(data.classes)}.",
            hint=f"Set data.classes to the names of all {count} classes, in the order of the model's outputs.",
        )
    lowest, highest = data.label_range or (0, 0)
    if lowest < 0 or highest >= count:
        raise MeasurementError(
            f"{returned}, for the class numbers 0 to {count - 1}, but the labels range from {lowest} to {highest}.",
            hint=f"Number the classes from 0 to {count - 1}. For a table, you can instead set data.classes to the "
            "labels in the order of the model's outputs. If the targets are not classes, choose another "
            "evaluate.metric.",
        )


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines; if lines are omitted, append a line with the number of omitted lines."""
    rest = len(lines) - _MOST_LINES
    return [line[:LONGEST_LINE] for line in lines[:_MOST_LINES]] + [f"and {rest} more"] * (rest > 0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shortened([f'"{name}"' for name in names]))
