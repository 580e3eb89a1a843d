"""Find a night's regressions: compare the candidates' numbers with references that stay fixed until a reset.

``docs/regressions.md`` describes the rules, their sources and the measured results.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from math import exp
from pathlib import Path

import duckdb
import numpy as np

from storage.errors import ConfigurationError
from storage.results import FindingKind, FindingMetric, Row, candidate_of
from storage.results.catalog import refresh
from storage.results.changepoint import scan
from storage.results.history import History, Key, Series, Tonight, attribute
from storage.results.query import open_catalog
from storage.results.writer import ResultsStore
from storage.root import StoreRoot

KNOWN_NIGHTS = 10  # a candidate that was absent for this many nights counts as new
LEAST_SIZE_EFFECT = 0.02  # minimum change, as a fraction of the reference
LEAST_QUALITY_EFFECT = 0.005  # minimum change, as a fraction of the baseline's quality
_WORSE: dict[FindingMetric, FindingKind] = {"speedup": "slower", "size_bytes": "larger"}


@dataclass(frozen=True)
class Regression:
    """A row of ``findings`` about a candidate; a candidate that appeared or vanished has no numbers."""

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
        """Whether the candidate vanished or became slower, larger or worse; such a finding triggers an alert."""
        return self.kind in ("slower", "larger", "worse", "vanished")

    def describe(self) -> str:
        """Describe the finding in one line, with its numbers."""
        text = f"{self.workload} {candidate_of(vars(self))} {self.kind}"
        if self.tonight is None or self.reference is None:
            return text
        interval = ""
        if self.tonight_low is not None and self.tonight_high not in (None, self.tonight_low):
            interval = f" ({self.tonight_low:.4g} to {self.tonight_high:.4g})"
        change = f", {self.change:+.1%}" if self.change is not None else ""
        changed = f" since {self.since}; cause: {self.changed}" if self.since and self.changed else ""
        return f"{text}: {self.metric} {self.tonight:.4g}{interval}, was {self.reference:.4g}{change}{changed}"


@dataclass(frozen=True)
class NightComparison:
    """Findings from comparing a night with earlier nights; ``nights`` maps each workload to the compared night.

    A number is ``workload recipe/runtime metric``; it is incomparable if its history is missing or too noisy.
    """

    findings: tuple[Regression, ...]
    compared: tuple[str, ...] = ()
    incomparable: tuple[str, ...] = ()
    nights: dict[str, dt.date] = field(default_factory=dict)

    def of(self, workloads: Collection[str]) -> NightComparison:
        """Return the part of the comparison that concerns `workloads`."""

        return NightComparison(
            tuple(finding for finding in self.findings if finding.workload in workloads),
            tuple(name for name in self.compared if name.partition(" ")[0] in workloads),
            tuple(name for name in self.incomparable if name.partition(" ")[0] in workloads),
            {name: night for name, night in self.nights.items() if name in workloads},
        )

    def rows(self, run_id: str, night: dt.date) -> list[Row]:
        """Return the findings as rows of the ``findings`` table."""
        return [{**asdict(finding), "run_id": run_id, "night": night} for finding in self.findings]


@dataclass(frozen=True)
class _Change:
    """A number that changed; ``starts`` maps each possible first night of the change to a log likelihood."""

    finding: Regression
    row: Tonight
    starts: dict[dt.date, float]
    certainty: float

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of a candidate's changes: regressions come first, then the most certain changes."""
        return self.finding.is_bad, self.certainty


def compare_night(
    source: StoreRoot | Path | str | duckdb.DuckDBPyConnection, night: dt.date | None = None
) -> NightComparison:
    """Compare a night, by default each workload's latest night, with earlier nights."""
    with nullcontext(source) if isinstance(source, duckdb.DuckDBPyConnection) else open_catalog(source) as connection:
        history = History(connection, night)
        rows = list({row.series: row for row in history.tonight()}.values())
        speeds, numbers = history.speeds(), history.numbers()
        metrics_of = _metrics(rows, speeds, numbers)
        compared: dict[str, bool] = {}
        changes: dict[tuple[Key, FindingMetric], _Change] = {}
        for row in rows:
            for metric in metrics_of[row.candidate]:
                if metric == "speedup":
                    is_compared, change = _speed(row, speeds.get(row.series))
                else:
                    quality_of = 0 if metric == "size_bytes" else row.quality_of
                    is_compared, change = _number(row, numbers.get((row.candidate, metric, quality_of)), metric)
                name = f"{row.key.workload} {candidate_of(row.key._asdict())} {metric}"
                compared[name] = compared.get(name, False) or is_compared
                known = changes.get((row.key, metric))
                if change is not None and (known is None or change.rank > known.rank):
                    changes[row.key, metric] = change
        inputs = history.inputs({change.row.candidate for change in changes.values()}) if changes else []
        findings = [_with_cause(change, inputs) for change in changes.values()] + list(_presence(history))
    return NightComparison(
        tuple(sorted(findings, key=lambda item: (item.workload, item.recipe, item.runtime, item.metric))),
        tuple(name for name, is_compared in compared.items() if is_compared),
        tuple(name for name, is_compared in compared.items() if not is_compared),
        {row.key.workload: row.night for row in rows},
    )


def _metrics(
    rows: Sequence[Tonight], speeds: Mapping[int, Series], numbers: Mapping[tuple[int, FindingMetric, int], Series]
) -> dict[int, list[FindingMetric]]:
    """Return the metrics to compare, keyed by candidate; a quality difference with an interval replaces the quality."""
    last = {row.candidate: row.night for row in rows}
    seen = {(row.candidate, "speedup") for row in rows if row.series in speeds and not row.is_baseline
            and speeds[row.series].nights[-1] == row.night}  # fmt: skip
    seen |= {(key[0], key[1]) for key, series in numbers.items() if series.nights[-1] == last.get(key[0])}
    compared: dict[int, list[FindingMetric]] = {}
    for candidate in last:
        quality: FindingMetric = "quality_difference" if (candidate, "quality_difference") in seen else "quality"
        metrics: tuple[FindingMetric, ...] = ("speedup", "size_bytes", quality)
        compared[candidate] = [metric for metric in metrics if (candidate, metric) in seen]
    return compared


def _speed(row: Tonight, series: Series | None) -> tuple[bool, _Change | None]:
    if series is None or series.sds is None or series.nights[-1] != row.night:
        return False, None
    nights, ratios, sds = series.nights, series.values, series.sds
    scanned = scan(ratios, sds)
    if scanned is None or not scanned.is_change:
        return scanned is not None and scanned.is_comparable, None
    best = scanned.best
    shift = float(scanned.shift[best])
    low, value, high = (exp(ratios[-1] + sign * 1.96 * sds[-1]) for sign in (-1, 0, 1))
    finding = Regression(
        *row.key, "slower" if shift < 0 else "improved", "speedup", value, low, high,
        exp(scanned.reference[best]), exp(shift) - 1, int(scanned.nights[best]),
        machine=row.machine, fingerprint=row.fingerprint,
    )  # fmt: skip
    same = scanned.shift * shift > 0
    starts = {
        nights[start]: float(evidence)
        for start, evidence in zip(scanned.starts[same], scanned.evidence[same], strict=True)
    }
    return True, _Change(finding, row, starts, float(scanned.evidence[best]))


def _number(row: Tonight, series: Series | None, metric: FindingMetric) -> tuple[bool, _Change | None]:
    """Compare a size or a quality, which stays the same on all nights and machines unless an input changes."""
    if series is None or len(series.values) < 2 or series.nights[-1] != row.night:
        return False, None
    nights, values, low, high = series.nights, series.values, series.low, series.high
    reference, tonight = float(values[0]), float(values[-1])
    if metric == "size_bytes":
        least = LEAST_SIZE_EFFECT * abs(reference)
    else:
        least = LEAST_QUALITY_EFFECT * ((series.scale or 0.0) if metric == "quality_difference" else abs(reference))
    shift = tonight - reference
    clears = low is None or high is None or not low <= reference <= high
    if not shift or abs(shift) < least or not clears:
        return True, None
    is_worse = (shift < 0) == (metric != "size_bytes" and bool(row.higher_is_better))
    finding = Regression(
        *row.key, _WORSE.get(metric, "worse") if is_worse else "improved", metric, tonight, low, high, reference,
        tonight / reference - 1 if reference else None, 1, machine=row.machine, fingerprint=row.fingerprint,
    )  # fmt: skip
    # The change began after the last night whose value was closer to the reference than to tonight's value.
    moved = (values - reference) / shift >= 0.5
    first = len(moved) - int(np.argmin(moved[::-1]))
    return True, _Change(finding, row, {nights[first]: 0.0}, abs(shift))


def _with_cause(change: _Change, inputs: Sequence[Row]) -> Regression:
    tonight, finding = change.row, change.finding
    rows = [row for row in inputs if row["candidate"] == tonight.candidate]
    if finding.metric == "speedup":
        rows = [row for row in rows if row["series"] == tonight.series]
    cause = attribute(rows, change.starts)
    return replace(finding, since=cause.since, cause=",".join(cause.names), changed=cause.text)


def _presence(history: History) -> Iterator[Regression]:
    """Yield a finding for each candidate that has appeared or vanished."""
    for nights in history.presence().values():
        tonight, *before = [nights[night] for night in sorted(nights, reverse=True)][: 1 + KNOWN_NIGHTS]
        ages = {key: age for age, keys in reversed(list(enumerate(before))) for key in keys}
        # Because a run can be limited to some recipes, tonight's candidates may have been absent for several nights.
        # Look back over the longest absence of any of tonight's candidates, and report all candidates that vanished
        # since.
        reach = max((ages[key] for key in tonight if key in ages), default=0)
        for key in sorted(tonight - ages.keys()) if before else ():
            yield Regression(*key, "appeared", "candidate")
        for key in sorted(key for key, age in ages.items() if key not in tonight and age <= reach):
            yield Regression(*key, "vanished", "candidate")


def acknowledge(
    root: StoreRoot,
    night: dt.date | None,
    *,
    workloads: Sequence[str],
    recipes: Sequence[str] = (),
    runtimes: Sequence[str] = (),
    metrics: Sequence[str] = (),
    by: str,
    reason: str,
) -> list[Regression]:
    """Accept a night's findings that match the filters, so that later nights are compared with the accepted numbers.

    Candidates that appeared or vanished are reported only once and do not need to be accepted. Raise
    `ConfigurationError` if no finding matches, or if the reason is empty.
    """
    if not reason.strip():
        raise ConfigurationError(
            "The reason for the acknowledgement is empty.", hint='Give a reason with --reason "…".'
        )
    compared = compare_night(root, night)
    open_findings = [finding for finding in compared.findings if finding.metric != "candidate"]
    accepted = [
        finding
        for finding in open_findings
        if finding.workload in workloads
        and (not recipes or finding.recipe in recipes)
        and (not runtimes or finding.runtime in runtimes)
        and (not metrics or finding.metric in metrics)
    ]
    if not accepted:
        known = "; ".join(finding.describe() for finding in open_findings)
        raise ConfigurationError(
            f"There is nothing to acknowledge for {', '.join(workloads)}.",
            hint=f"Choose one of the night's findings: {known}." if known else "The night has no findings.",
        )
    now = dt.datetime.now(dt.UTC)
    run_id = f"acknowledged-{now:%Y%m%d}-{uuid.uuid4().hex[:12]}"
    shared: Row = {"run_id": run_id, "reason": reason, "acknowledged_by": by, "acknowledged_at": now}
    rows: list[Row] = []
    for finding in accepted:
        named = {name: getattr(finding, name) for name in ("workload", "recipe", "runtime", "metric")}
        rows.append({**named, "night": compared.nights[finding.workload], **shared})
    ResultsStore(root).append("acknowledgements", rows, run_id, now)
    refresh(root)
    return accepted
