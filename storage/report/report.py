"""Put a night's facts and plots into one self-contained HTML page."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from storage.report.facts import Facts, WorkloadFacts, gather
from storage.report.format import FILTERS
from storage.report.plots import pareto_plot, signs_of, trend_plot
from storage.results.query import open_catalog
from storage.root import StoreRoot


def write_report(root: StoreRoot | Path | str, night: dt.date | None, target: Path) -> dt.date:
    """Write the report of a night (the newest by default) to a file; give the night.

    Raises
    ------
    ConfigurationError
        There are no results of that night, or the file cannot be written.
    """
    from storage.errors import ConfigurationError

    with open_catalog(root) as connection:
        facts = gather(connection, night)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render(facts), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"The report {target} cannot be written: {error.strerror}.", hint="Choose another place with -o."
        ) from error
    return facts.night


def render(facts: Facts) -> str:
    """The page as HTML: no script, no network, every text escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("storage.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(FILTERS)
    plots = {workload.name: _plots(workload) for workload in facts.workloads}
    return environment.get_template("report.html.j2").render(facts=facts, plots=plots)


def _plots(workload: WorkloadFacts) -> dict[str, str]:
    signs = signs_of([*workload.leaderboard, *workload.trend])
    return {
        "pareto": pareto_plot(workload.leaderboard, workload.pareto, signs, f"{workload.name}: size and speed-up"),
        "trend": trend_plot(workload.trend, signs, f"{workload.name}: speed-up over the nights"),
    }
