"""A module that `tasks.benchmark.child` can run: it says whether garbage was collected when, or fails."""

from __future__ import annotations

import gc
import json
from pathlib import Path

WHILE_IMPORTED = gc.isenabled()


def main(spec: str, out: str) -> None:
    """Fail where `spec` is ``fail``; write down the collector's state otherwise."""
    if spec == "fail":
        raise ValueError("asked to fail")
    state = {"imported": WHILE_IMPORTED, "running": gc.isenabled(), "frozen": gc.get_freeze_count()}
    Path(out).write_text(json.dumps(state), encoding="utf-8")
    print("said without a flush")  # noqa: T201
