"""What the killed nights are asked for, who hears their alarms, and what must have become of both."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.findings import look_back
from storage.bundles import BundleStore
from storage.recovery import by_run, unrecorded_switches
from storage.results.query import open_fresh, rows_of

FIRST_NIGHT = dt.date(2026, 1, 1)
WORKLOADS = ("first", "second")
_WORKLOAD = """
schema_version = 1
name = "{name}"
description = "An LSTM whose int8 form is smaller, and so is handed over"
domain = "sequence"
[data]
kind = "random-sequence"
[model]
kind = "lstm"
dimension = 64
[checkpoint]
kind = "seeded"
seed = {seed}
[[recipe]]
name = "float"
method = "none"
[[recipe]]
name = "int8"
method = "dynamic"
runtimes = ["torchscript"]
{more}
[benchmark]
baseline = "float/eager"
[gate]
objective = "smallest"
"""
_EVERY_SECOND_NIGHT = """
[[recipe]]
name = "half"
method = "dynamic"
dtype = "float16"
runtimes = ["torchscript"]
"""


def ask(folder: Path, number: int) -> list[str]:
    """Write the workloads of a night and return the command's arguments.

    Every night has other weights, so that its winners replace the current bundles. Every second one lacks a candidate
    of the one before, which raises an alarm.
    """
    arguments = ["--night", str(FIRST_NIGHT + dt.timedelta(number))]
    for name in WORKLOADS:
        path = folder / f"{name}.toml"
        more = _EVERY_SECOND_NIGHT if number % 2 == 0 else ""
        path.write_text(_WORKLOAD.format(name=name, seed=number, more=more), encoding="utf-8")
        arguments += ["--workload", str(path)]
    return arguments


@contextmanager
def hearing() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Listen on loopback; yield the address for a webhook and what it was sent so far."""
    heard: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", heard
        finally:
            server.shutdown()
            thread.join()


def require_heard(store: Path, number: int, heard: list[dict[str, object]]) -> None:
    """`RuntimeError` if a night has handed something over, and the alarm that it had to raise before was not heard."""
    found = look_back(str(store), FIRST_NIGHT + dt.timedelta(number), WORKLOADS, is_everything=False)
    if any(finding.is_bad for finding in found.comparison.findings) and not heard:
        raise RuntimeError(f"Nobody was told: {[finding.describe() for finding in found.comparison.findings]}")


def require_kept(store: Path, number: int, said: str) -> None:
    """`RuntimeError` if a night, whose output is `said`, began a benchmark before it had recorded the one before."""
    begun = [name for name in WORKLOADS if f"{name}: benchmark …" in said]
    with open_fresh(store) as results:
        night = FIRST_NIGHT + dt.timedelta(number)
        kept = {row["workload"] for row in rows_of(results, "from measurements where night = $night", night=night)}
    if lost := set(begun[:-1]) - kept:
        raise RuntimeError(f"Measured and not recorded: {lost}")


def require_true(store: Path) -> None:
    """`RuntimeError` if promotions has a switch that did not happen, or lacks one that did, or a run lacks its end."""
    switches = {
        (workload, switch.by, switch.version)
        for workload in WORKLOADS
        if (pointer := BundleStore(store).pointer(workload))
        for switch in pointer.history
    }
    with open_fresh(store) as results:
        promoted = rows_of(results, "from promotions where decision = 'promote' and incumbent_stays is not true")
        endless = rows_of(results, "select run_id from measurements except select run_id from runs")
    recorded = {(row["workload"], by_run(str(row["run_id"])), row["bundle_version"]) for row in promoted}
    if recorded != switches or unrecorded_switches(store):
        raise RuntimeError(f"Recorded {recorded - switches}, not recorded {switches - recorded}.")
    if endless:
        raise RuntimeError(f"Nobody knows how these ended: {endless}")
