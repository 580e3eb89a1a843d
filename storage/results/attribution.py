"""What changed when a candidate's number did: its environment, what it is made of, or nothing that is known."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from storage.results.history import Made

# A digest covers those of what it is made from: what follows from another is no cause of its own.
_INPUTS = ("data", "checkpoint", "calibration", "recipe", "source")
_FOLLOW = {"data": ("checkpoint", "calibration")}
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
    made: Sequence[Made], starts: Mapping[dt.date, float], shift: float, incumbent: Sequence[Made], metric: str
) -> Cause:
    """Say what changed with a number.

    Parameters
    ----------
    made
        The candidate's measurements that were compared, oldest first.
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
    changes = {night: changes_on(made, night) for night in good}
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


def changes_on(made: Sequence[Made], night: dt.date) -> dict[str, str]:
    """What is not on a night as it was on the last one before: each change in words, by name."""
    earlier, later = [each for each in made if each.night < night], [each for each in made if each.night == night]
    if not earlier or not later:
        return {}
    now = later[-1]
    found = {}
    if earlier[-1].machine != now.machine:
        # Rows of earlier versions have nothing but a fingerprint, which covers both.
        told = None not in (earlier[-1].environment, now.environment)
        found["machine"] = "another machine" if told else "another machine or environment"
    if text := _environment_change(earlier, now):
        found["environment"] = f"environment: {text}"
    for name in _INPUTS:
        before, after = next(_known(earlier, name), None), getattr(now, name)
        if before is not None and after is not None and before != after:
            found[name] = name
    for name in [follower for cause in found for follower in _FOLLOW.get(cause, ())]:
        found.pop(name, None)
    before = next(_known(earlier, "artifact"), None)
    if not found and None not in (before, now.artifact) and before != now.artifact:
        found["artifact"] = "the candidate's bytes, by an input that is not recorded"
    return found


def _known(earlier: Sequence[Made], name: str) -> Iterator[str]:
    """Earlier values of a column, the last one first."""
    return (value for each in reversed(earlier) if (value := getattr(each, name)) is not None)


def _environment_change(earlier: Sequence[Made], now: Made) -> str:
    if now.environment is None or earlier[-1].environment is None:
        # Rows of earlier versions: all that is known of the environment is in the fingerprint, the machine too.
        is_same = None in (earlier[-1].fingerprint, now.fingerprint) or earlier[-1].fingerprint == now.fingerprint
        return "" if is_same or earlier[-1].machine != now.machine else "not recorded before"
    before, after = json.loads(earlier[-1].environment), json.loads(now.environment)
    changed = [name for name in sorted(before | after) if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name, 'not there')} → {after.get(name, 'not there')}" for name in changed)


def _moved(incumbent: Sequence[Made], since: dt.date, shift: float, metric: str) -> bool | None:
    """Whether the incumbent's bytes changed as the candidate did; None where that cannot be told."""
    if metric == "speedup":
        timed = [(each.night >= since, each.ratio, each.ratio_sd) for each in incumbent if each.ratio is not None]
    else:
        timed = [(each.night >= since, each.quality, abs(shift) / 10) for each in incumbent if each.quality is not None]
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
