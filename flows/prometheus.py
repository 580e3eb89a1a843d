"""Prometheus metrics about the last night in a store."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge, generate_latest, write_to_textfile

from flows.overview import Overview, last_good_night
from storage.errors import ConfigurationError
from storage.results import RunStatus


def as_text(state: Overview, now: dt.datetime) -> str:
    """Return the metrics in Prometheus's text format."""
    return generate_latest(metrics(state, now)).decode()


def write(state: Overview, now: dt.datetime, file: Path) -> None:
    """Write the metrics to a file atomically; raise `ConfigurationError` if writing fails."""
    try:
        write_to_textfile(str(file), metrics(state, now))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}.") from error


def metrics(state: Overview, now: dt.datetime) -> CollectorRegistry:
    """Return gauges for the last night, each with a ``store`` label; before the first night, the gauges have no values.

    Times are Unix timestamps; the age is the time from the end of the night to `now`, in seconds. Alerts should be
    based on the timestamps, because the age stops growing if the file is no longer updated.
    """
    registry = CollectorRegistry()

    def gauge(name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"nightquant_{name}", meaning, ("store", *labels), registry=registry)

    finished = gauge("last_night_finished_timestamp_seconds", "When the last night ended, with any status.")
    good = gauge("last_good_night_finished_timestamp_seconds", "When the last night without a failure ended.")
    old = gauge("last_night_age_seconds", "Time from the end of the last night until this file was written.")
    status = gauge("last_night_status", "1 for the last night's status, 0 for every other status.", "status")
    candidates = gauge("last_night_candidates", "Number of candidates in the last night.", "outcome")
    alarms = gauge("alarms", "Number of unacknowledged regressions.")
    if (last := state.last_run) is None:
        return registry
    finished.labels(state.store).set(last.finished_at.timestamp())
    old.labels(state.store).set((now - last.finished_at).total_seconds())
    if at := last_good_night(state.store):
        good.labels(state.store).set(at.timestamp())
    for name in get_args(RunStatus):
        status.labels(state.store, name).set(last.status == name)
    for outcome in ("measured", "failed", "promoted", "held", "rejected"):
        candidates.labels(state.store, outcome).set(getattr(last, outcome))
    alarms.labels(state.store).set(last.alarms)
    return registry
