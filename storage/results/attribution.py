"""What changed when a candidate's number did: its environment, what it is made of, or nothing that is known."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from storage.results import Row, number
from storage.results.changes import changes_between

# Starts whose likelihood is within this factor (as a logarithm) of the best one's are as good; one with a reason is
# taken before one without.
_AS_GOOD = 3.0
_NIGHT_SD = 0.015  # night-to-night standard deviation that the incumbent is credited with


@dataclass(frozen=True)
class Cause:
    """What changed on the night ``since``.

    ``names`` is some of machine, environment, data, checkpoint, calibration, recipe, source, artifact, or empty;
    ``text`` says the same in words, with versions.
    """

    since: dt.date
    names: tuple[str, ...]
    text: str


def attribute(
    made: Sequence[Row], starts: Mapping[dt.date, float], shift: float, incumbent: Sequence[Row], metric: str
) -> Cause:
    """Say what changed with a number.

    Parameters
    ----------
    made
        Rows of the candidate's measurements that were compared, oldest first, as `History.made` returns them.
    starts
        Nights on which the change may have begun, with the logarithm of each one's likelihood.
    shift
        The change: of the speed-up's logarithm, or of the quality.
    incumbent
        Measurements of the bytes that are the incumbent's, comparable with tonight's and oldest first.
    metric
        The number's column.
    """
    best = max(starts.values())
    good = sorted((night for night in starts if best - starts[night] <= _AS_GOOD), key=lambda night: -starts[night])
    changes = {night: _changes_on(made, night) for night in good}
    since = next((night for night in good if changes[night]), good[0])
    found = changes[since]
    moved = None if metric == "size_bytes" else _moved(incumbent, since, shift, metric)
    around = {name: text for name, text in found.items() if name in ("machine", "environment")}
    inputs = {name: text for name, text in found.items() if name not in around}
    note = ""
    if moved is not None and not (around and not inputs):
        note = "; the incumbent's same bytes moved too" if moved else "; the incumbent's same bytes did not move"
        if around and inputs:
            found = around if moved else inputs
        elif not found:
            note += ": environment or machine" if moved else ": what was built"
    return Cause(since, tuple(found), (", ".join(found.values()) or "nothing known") + note)


def _changes_on(made: Sequence[Row], night: dt.date) -> dict[str, str]:
    """Return what is not on a night as it was on the last one before."""
    earlier, later = [row for row in made if _night(row) < night], [row for row in made if _night(row) == night]
    return changes_between(earlier, later[-1]) if later else {}


def _night(row: Row) -> dt.date:
    night = row["night"]
    assert isinstance(night, dt.date)
    return night


def _moved(incumbent: Sequence[Row], since: dt.date, shift: float, metric: str) -> bool | None:
    """Whether the incumbent's bytes changed as the candidate did; None where that cannot be told."""
    column = "ratio" if metric == "speedup" else "quality"
    sds = [number(row, "ratio_sd") if metric == "speedup" else abs(shift) / 10 for row in incumbent]
    timed = [
        (_night(row) >= since, value, sd)
        for row, sd in zip(incumbent, sds, strict=True)
        if sd is not None and (value := number(row, column)) is not None
    ]
    means, variance = [], 0.0
    for is_after in (False, True):
        side = [(value, sd) for after, value, sd in timed if after == is_after and isfinite(value)]
        if not side:
            return None
        values, sds = np.array(side).T
        weight = 1 / (sds**2 + (_NIGHT_SD**2 if metric == "speedup" else 0))
        means.append(float(np.average(values, weights=weight)))
        variance += float(1 / weight.sum())
    # Logarithm of the likelihood ratio of a change as large as the candidate's against none.
    likelihood = shift * (means[1] - means[0] - shift / 2) / variance
    return likelihood > 0 if abs(likelihood) > 1 else None
