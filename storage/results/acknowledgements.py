"""Accepting what a night found: a reason in the store, from which on the number has a new reference."""

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
    """Accept the findings of a night (each workload's newest by default) that fit; return them.

    Their references begin anew with that night. What appeared or vanished is told once and needs no acceptance.

    Raises
    ------
    ConfigurationError
        None fits, or there is no reason.
    """
    if not reason.strip():
        raise ConfigurationError("An acknowledgement needs a reason.", hint='Say why: --reason "…".')
    compared = compare_night(root, night)
    open_findings = [each for each in compared.findings if each.metric != "candidate"]
    accepted = [
        each
        for each in open_findings
        if each.workload in workloads
        and (not recipes or each.recipe in recipes)
        and (not runtimes or each.runtime in runtimes)
        and (not metrics or each.metric in metrics)
    ]
    if not accepted:
        known = "; ".join(each.describe() for each in open_findings) or "nothing"
        raise ConfigurationError(
            f"There is nothing to acknowledge for {', '.join(workloads)}.", hint=f"The night found: {known}."
        )
    now = dt.datetime.now(dt.UTC)
    run_id = f"acknowledged-{now:%Y%m%d}-{uuid.uuid4().hex[:12]}"
    common: Row = {"run_id": run_id, "reason": reason, "acknowledged_by": by, "acknowledged_at": now}
    rows: list[Row] = [
        {
            **common,
            "night": compared.nights[each.workload],
            "workload": each.workload,
            "recipe": each.recipe,
            "runtime": each.runtime,
            "metric": each.metric,
        }
        for each in accepted
    ]
    ResultsStore(root).append("acknowledgements", rows, run_id, now)
    refresh(root)
    return accepted
