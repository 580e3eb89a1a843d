"""The last night of a store as numbers for Prometheus."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge, generate_latest, write_to_textfile

from flows.overview import Overview, last_good_night
from storage.errors import ConfigurationError
from storage.results import RunStatus


def as_text(state: Overview, now: dt.datetime) -> str:
    """Return the metrics in Prometheus's own format."""
    return generate_latest(metrics(state, now)).decode()


def write(state: Overview, now: dt.datetime, file: Path) -> None:
    """Write the metrics to a file, in one step; `ConfigurationError` if that is not possible."""
    try:
        write_to_textfile(str(file), metrics(state, now))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}.") from error


def metrics(state: Overview, now: dt.datetime) -> CollectorRegistry:
    """Return the last night as gauges, each labelled with the store; without a night they have no samples.

    Times are Unix seconds and ages seconds. The age is that at `now`: alert on the time, which goes on being true when
    nothing writes the file any more.
    """
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"nightquant_{name}", meaning, ("store", *labels), registry=registry)

    finished = gauge("last_night_finished_timestamp_seconds", "When the last night ended, whatever became of it.")
    good = gauge("last_good_night_finished_timestamp_seconds", "When the last night ended in which nothing failed.")
    old = gauge("last_night_age_seconds", "How long ago the last night had ended when this was written.")
    status = gauge("last_night_status", "1 for the last night's status, 0 for the others.", "status")
    candidates = gauge("last_night_candidates", "Candidates of the last night.", "outcome")
    alarms = gauge("alarms", "Regressions that nobody has acknowledged.")
    if (last := state.last_run) is None:
        return registry
    finished.labels(state.store).set(last.finished_at.timestamp())
    old.labels(state.store).set((now - last.finished_at).total_seconds())
    if at := last_good_night(state.store):
        good.labels(state.store).set(at.timestamp())
    for each in get_args(RunStatus):
        status.labels(state.store, each).set(last.status == each)
    for outcome in ("measured", "failed", "promoted", "held", "rejected"):
        candidates.labels(state.store, outcome).set(getattr(last, outcome))
    alarms.labels(state.store).set(last.alarms)
    return registry
