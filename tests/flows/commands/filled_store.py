"""A store with two nights and bundles of a few bytes, for the commands that look at one."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from storage.bundles import BundleStore
from storage.results.catalog import refresh
from storage.results.writer import ResultsStore
from storage.seal import MANIFEST, write_sums
from tests.storage.bundle_files import promote
from tests.storage.results.rows import at, baseline, measurement, promotion, run_row
from tests.storage.test_manifest import GOOD

NIGHTS = (dt.date(2026, 3, 1), dt.date(2026, 3, 2))
RUNS = tuple(f"run-{night}" for night in NIGHTS)
VERSIONS = ("2026-03-01-00000000000a", "2026-03-02-00000000000b")
AFTER = at(NIGHTS[1], 5)  # an hour after the last night
_RULE = {"name": "min_speedup", "bound": 1.05, "seen": 1.9, "outcome": "passed", "note": "from 1.9 to 2.1"}


def write(root: Path, night: int, **changes: Any) -> None:
    """Append one of the nights to the results; `changes` are lists of rows in place of the usual ones."""
    day, run = NIGHTS[night], RUNS[night]
    stands = {} if night == 0 else {"current_version": VERSIONS[0], "current_stays": True, "current_reason": "ok"}
    made = {"bundle_version": VERSIONS[0]} if night == 0 else {}
    tables = {
        "measurements": [baseline(run, day), measurement(run, day)],
        "promotions": [promotion(run, day, **stands, **made)],
        "runs": [run_row(run, day, message="as it should be")],
    } | changes
    store = ResultsStore(root)
    for table, rows in tables.items():
        store.append(table, rows, run, at(day, 4), "word-lm" if table == "promotions" else "")
    refresh(root)


def hand_over(root: Path, number: int) -> None:
    """Publish and promote one of the versions."""
    bundles = BundleStore(root)
    document = GOOD | {
        "version": VERSIONS[number],
        "workload": GOOD["workload"] | {"name": "word-lm"},
        "recipe": {"name": "dynamic", "method": "dynamic", "engine": "x86", "modules": ["LSTM", "Linear"]},
        "gate": {"decision": "promote", "objective": "fastest", "reason": "fastest of 1", "rules": [_RULE]},
        "measurements": [
            {"recipe": "dynamic", "runtime": "torchscript", "setting": "primary", "status": "ok", "size_bytes": 400}
            | {"artifact_digest": GOOD["sources"]["quantized"]}
        ],
    }
    with bundles.draft() as folder:
        (folder / MANIFEST).write_text(json.dumps(document))
        (folder / "MODEL_CARD.md").write_text("# word-lm\n")
        (folder / "model.ts").write_text(VERSIONS[number])
        write_sums(folder)
        bundles.publish(folder, "word-lm", VERSIONS[number])
    promote(bundles, VERSIONS[number], by=f"run {RUNS[number]}", reason="fastest of 1")


def fill(root: Path) -> Path:
    """Two nights; the first one's winner is current, the bundle before it is there too."""
    for night in (0, 1):
        write(root, night)
    hand_over(root, 1)
    hand_over(root, 0)
    return root
