"""Accept a night's findings and record the reason, so that later nights are compared with the accepted numbers."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from storage.errors import ConfigurationError
from storage.results import Row
from storage.results.catalog import refresh
from storage.results.regressions import Regression, compare_night
from storage.results.writer import ResultsStore
from storage.root import StoreRoot


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
    """Accept and return a night's findings that match the filters; by default, use each workload's latest night.

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
    common: Row = {"run_id": run_id, "reason": reason, "acknowledged_by": by, "acknowledged_at": now}
    rows: list[Row] = [
        {
            **common,
            "night": compared.nights[finding.workload],
            "workload": finding.workload,
            "recipe": finding.recipe,
            "runtime": finding.runtime,
            "metric": finding.metric,
        }
        for finding in accepted
    ]
    ResultsStore(root).append("acknowledgements", rows, run_id, now)
    refresh(root)
    return accepted
