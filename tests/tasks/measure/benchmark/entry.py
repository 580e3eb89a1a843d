"""A module that `tasks.measure.benchmark.child` can run: it reports whether garbage was collected when, or fails."""

from __future__ import annotations

import gc

from tasks.values.refs import Frozen

WHILE_IMPORTED = gc.isenabled()


class Collector(Frozen):
    """Whether it was on while this module was imported and while it ran, and how many objects it need not look at."""

    imported: bool
    running: bool
    frozen: int


def run(spec: str, _wait: object) -> Collector:
    """Fail where `spec` is ``fail``; report the collector's state otherwise."""
    if spec == "fail":
        raise ValueError("asked to fail")
    print("said without a flush")  # noqa: T201
    return Collector(imported=WHILE_IMPORTED, running=gc.isenabled(), frozen=gc.get_freeze_count())
