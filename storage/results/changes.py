"""What is not the same between measurements of a candidate: the machine, its environment, the inputs, the bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from storage.results import Row

# A digest covers those of what it is made from: what follows from another is no cause of its own.
_INPUTS = ("data", "checkpoint", "calibration", "recipe", "source")
_FOLLOW = {"data": ("checkpoint", "calibration")}


def changes_between(earlier: Sequence[Row], now: Row) -> dict[str, str]:
    """Return what changed, in words, by name: machine, environment, data, checkpoint, recipe, …

    Parameters
    ----------
    earlier
        Rows with the columns of ``measurements``, oldest first; an input that one of them lacks is looked up in those
        before. Columns that they do not have are unknown.
    now
        The later row.
    """
    if not earlier:
        return {}
    last, found = earlier[-1], {}
    if last.get("machine") != now.get("machine"):
        found["machine"] = "another machine"
    if changed := _environment_changes(last.get("environment"), now.get("environment")):
        found["environment"] = f"environment: {changed}"
    found |= {name: name for name in _INPUTS if _differs(earlier, now, f"{name}_digest")}
    for name in [follower for cause in found for follower in _FOLLOW.get(cause, ())]:
        found.pop(name, None)
    if not found and _differs(earlier, now, "artifact_digest"):
        found["artifact"] = "the candidate's bytes, by an input that is not recorded"
    return found


def _differs(earlier: Sequence[Row], now: Row, column: str) -> bool:
    before = next((row[column] for row in reversed(earlier) if row.get(column) is not None), None)
    return None not in (before, now.get(column)) and before != now[column]


def _environment_changes(before: object, after: object) -> str:
    if before is None or after is None:
        return ""
    then, now = json.loads(str(before)), json.loads(str(after))
    changed = [name for name in sorted(then | now) if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'not there')} → {now.get(name, 'not there')}" for name in changed)
