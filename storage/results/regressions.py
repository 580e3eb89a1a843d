"""Regressions of a night: every number of its candidates against a reference that stays until somebody resets it.

docs/regressions.md gives the rules, their sources and what they find.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from math import exp, isnan
from pathlib import Path

import duckdb
import numpy as np

from storage.results import FindingKind, FindingMetric, Row
from storage.results.attribution import attribute
from storage.results.changepoint import Scan, scan
from storage.results.history import History, Key, Made, Numbers, Tonight
from storage.results.query import open_catalog
from storage.root import StoreRoot

KNOWN_NIGHTS = 10  # nights before that a candidate is known from, so that it does not appear
LEAST_SIZE_EFFECT = 0.02  # share of the reference
LEAST_QUALITY_EFFECT = 0.005  # share of the baseline's quality
_WORSE: dict[FindingMetric, FindingKind] = {"speedup": "slower", "size_bytes": "larger"}


@dataclass(frozen=True)
class Regression:
    """One finding about a candidate on a night.

    ``tonight`` with its interval and ``reference`` (over ``nights`` nights) are in the unit of ``metric``; ``change``
    is the value since the night ``since`` ÷ reference - 1, None if the reference is 0. All are None for a candidate
    that appeared or vanished. ``cause`` names what changed with it, comma-separated and "" if nothing known did;
    ``changed`` says so in words.
    """

    workload: str
    recipe: str
    runtime: str
    kind: FindingKind
    metric: FindingMetric
    tonight: float | None = None
    tonight_low: float | None = None
    tonight_high: float | None = None
    reference: float | None = None
    change: float | None = None
    nights: int = 0
    since: dt.date | None = None
    cause: str | None = None
    changed: str | None = None
    machine: str | None = None
    fingerprint: str | None = None

    @property
    def is_bad(self) -> bool:
        """Whether it should wake someone: slower, larger, worse or gone."""
        return self.kind in ("slower", "larger", "worse", "vanished")

    def describe(self) -> str:
        """The finding in a few words, with its numbers."""
        text = f"{self.workload} {self.recipe}/{self.runtime} {self.kind}"
        if self.tonight is None or self.reference is None:
            return text
        interval = ""
        if self.tonight_low is not None and self.tonight_high not in (None, self.tonight_low):
            interval = f" ({self.tonight_low:.4g} to {self.tonight_high:.4g})"
        change = f", {self.change:+.1%}" if self.change is not None else ""
        changed = f" since {self.since}, with: {self.changed}" if self.since and self.changed else ""
        return f"{text}: {self.metric} {self.tonight:.4g}{interval}, was {self.reference:.4g}{change}{changed}"


@dataclass(frozen=True)
class NightComparison:
    """A night against those before.

    ``compared`` names the numbers that had something to be compared with, as ``workload recipe/runtime metric``;
    ``incomparable`` those that had not, or whose history is too noisy to show a change. ``nights`` maps the workloads
    to the night that was compared.
    """

    findings: tuple[Regression, ...]
    compared: tuple[str, ...] = ()
    incomparable: tuple[str, ...] = ()
    nights: dict[str, dt.date] = field(default_factory=dict)

    def of(self, workloads: Collection[str]) -> NightComparison:
        """The part about some workloads."""

        def theirs(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in names if name.partition(" ")[0] in workloads)

        return NightComparison(
            tuple(each for each in self.findings if each.workload in workloads),
            theirs(self.compared),
            theirs(self.incomparable),
            {name: night for name, night in self.nights.items() if name in workloads},
        )

    def rows(self, run_id: str, night: dt.date) -> list[Row]:
        """Rows of ``findings``."""
        return [{**asdict(each), "run_id": run_id, "night": night} for each in self.findings]


@dataclass(frozen=True)
class _Change:
    """A number that changed; ``starts`` maps nights on which that may have begun to the logarithm of a likelihood."""

    found: Regression
    row: Tonight
    shift: float
    starts: dict[dt.date, float]
    certainty: float


def compare_night(
    source: StoreRoot | Path | str | duckdb.DuckDBPyConnection, night: dt.date | None = None
) -> NightComparison:
    """Compare a night (each workload's newest by default) with those before it."""
    with nullcontext(source) if isinstance(source, duckdb.DuckDBPyConnection) else open_catalog(source) as connection:
        history = History(connection, night)
        rows = {row.series: row for row in history.tonight()}.values()
        numbers, resets = history.numbers(), history.resets()
        compared: dict[str, bool] = {}
        changes: dict[tuple[Key, FindingMetric], _Change] = {}
        for row in rows:
            mine = numbers.of(row.candidate)
            for metric in _metrics(row, mine):
                begins = (resets.get((row.key, metric)), resets.get((row.key, None)))
                since = max(filter(None, begins), default=None)
                is_compared, change = (
                    _speed(row, mine.where("series", row.series, since))
                    if metric == "speedup"
                    else _number(row, mine, metric, since)
                )
                name = f"{row.key.workload} {row.key.recipe}/{row.key.runtime} {metric}"
                compared[name] = compared.get(name, False) or is_compared
                known = changes.get((row.key, metric))
                if change is not None and (known is None or _rank(change) > _rank(known)):
                    changes[row.key, metric] = change
        made = history.made({each.row.candidate for each in changes.values()}) if changes else []
        found = [_with_cause(each, made) for each in changes.values()] + list(_presence(history))
    return NightComparison(
        tuple(sorted(found, key=lambda each: (each.workload, each.recipe, each.runtime, each.metric))),
        tuple(name for name, is_compared in compared.items() if is_compared),
        tuple(name for name, is_compared in compared.items() if not is_compared),
        {row.key.workload: row.night for row in rows},
    )


def find_regressions(
    source: StoreRoot | Path | str | duckdb.DuckDBPyConnection, night: dt.date | None = None
) -> list[Regression]:
    """What `compare_night` found."""
    return list(compare_night(source, night).findings)


def _metrics(row: Tonight, mine: Numbers) -> Iterator[FindingMetric]:
    last = mine.nights == np.datetime64(row.night)
    if not row.is_baseline and np.isfinite(mine["ratio"][last]).any():
        yield "speedup"
    if np.isfinite(mine["size_bytes"][last]).any():
        yield "size_bytes"
    if _has_interval(mine)[last].any():
        yield "quality_difference"
    elif np.isfinite(mine["quality"][last]).any():
        yield "quality"


def _has_interval(mine: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isfinite(mine["quality_difference_low"] + mine["quality_difference_high"])


def _speed(row: Tonight, series: Numbers) -> tuple[bool, _Change | None]:
    """Compare a speed-up with its own history on one machine and in one setting."""
    nights, ratios, sds = series.nightly_ratios()
    scanned: Scan | None = scan(ratios, sds) if nights and nights[-1] == row.night else None
    if scanned is None or not scanned.is_change:
        return scanned is not None and scanned.is_comparable, None
    best = scanned.best
    shift = float(scanned.shift[best])
    low, value, high = (exp(ratios[-1] + sign * 1.96 * sds[-1]) for sign in (-1, 0, 1))
    found = Regression(
        *row.key, "slower" if shift < 0 else "improved", "speedup", value, low, high,
        exp(scanned.reference[best]), exp(shift) - 1, int(scanned.nights[best]),
        machine=row.machine, fingerprint=row.fingerprint,
    )  # fmt: skip
    same = scanned.shift * shift > 0
    starts = {
        nights[start]: float(found_by)
        for start, found_by in zip(scanned.starts[same], scanned.evidence[same], strict=True)
    }
    return True, _Change(found, row, shift, starts, float(scanned.evidence[best]))


def _number(row: Tonight, mine: Numbers, metric: FindingMetric, since: dt.date | None) -> tuple[bool, _Change | None]:
    """Compare a size or a quality, which is the same every night unless something changed, on whatever machine."""
    if metric != "size_bytes":
        mine = mine.where("quality_of", row.quality_of, since)
    elif since is not None:
        mine = mine.where("candidate", row.candidate, since)
    usable = np.isfinite(mine[metric]) & (_has_interval(mine) if metric == "quality_difference" else True)
    # Of each night the last one.
    usable[np.flatnonzero(usable)[:-1]] = np.diff(mine.nights[usable]) > np.timedelta64(0)
    values, nights = mine[metric][usable], mine.nights[usable]
    if len(values) < 2 or nights[-1] != np.datetime64(row.night):
        return False, None
    reference, tonight = float(values[0]), float(values[-1])
    low = high = None
    if metric == "quality_difference":
        low, high = (float(mine[f"quality_difference_{end}"][usable][-1]) for end in ("low", "high"))
    if metric == "size_bytes":
        least = LEAST_SIZE_EFFECT * abs(reference)
    else:
        scale = float(mine["quality_scale"][usable][-1]) if metric == "quality_difference" else abs(reference)
        least = LEAST_QUALITY_EFFECT * (0.0 if isnan(scale) else scale)
    shift = tonight - reference
    clears = low is None or high is None or not low <= reference <= high
    if not shift or abs(shift) < least or not clears:
        return True, None
    is_worse = (shift < 0) == (metric != "size_bytes" and bool(row.higher_is_better))
    found = Regression(
        *row.key, _WORSE.get(metric, "worse") if is_worse else "improved", metric, tonight, low, high, reference,
        tonight / reference - 1 if reference else None, 1, machine=row.machine, fingerprint=row.fingerprint,
    )  # fmt: skip
    # It began after the last night that was nearer to the reference than to tonight.
    moved = (values - reference) / shift >= 0.5
    first = len(moved) - int(np.argmin(moved[::-1]))
    return True, _Change(found, row, shift, {nights[first].item(): 0.0}, abs(shift))


def _rank(change: _Change) -> tuple[bool, float]:
    """Of a candidate's machines and settings the worst is told, then the most certain."""
    return change.found.is_bad, change.certainty


def _with_cause(change: _Change, made: list[Made]) -> Regression:
    row, found = change.row, change.found
    mine = [each for each in made if each.is_candidate and each.candidate == row.candidate]
    incumbent = [each for each in made if each.is_incumbent and each.workload == row.key.workload]
    if found.metric == "speedup":
        mine = [each for each in mine if each.series == row.series]
        incumbent = [each for each in incumbent if each.machine == row.machine]
    cause = attribute(mine, change.starts, change.shift, incumbent, found.metric)
    return replace(found, since=cause.since, cause=",".join(cause.names), changed=cause.text)


def _presence(history: History) -> Iterator[Regression]:
    """Candidates that none of the last nights had, and that a night before had and none of tonight's runs has."""
    for nights in history.presence().values():
        tonight, *before = [nights[night] for night in sorted(nights, reverse=True)][: 1 + KNOWN_NIGHTS]
        ages = {key: age for age, keys in reversed(list(enumerate(before))) for key in keys}
        # How far back the candidates of tonight reach: usually to the night before, but further where that night was
        # asked for some recipes only, and must not make a candidate be forgotten that is gone since.
        reach = max((ages[key] for key in tonight if key in ages), default=0)
        for key in sorted(tonight - ages.keys()) if before else ():
            yield Regression(*key, "appeared", "candidate")
        for key in sorted(key for key, age in ages.items() if key not in tonight and age <= reach):
            yield Regression(*key, "vanished", "candidate")
