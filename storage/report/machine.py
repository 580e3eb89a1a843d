"""What the machine was like during a night's benchmarks, and what of it is trouble."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from storage.humanize import percent
from storage.results import Row, number

# Beyond these, numbers are worse than a quiet machine's; `nightquant doctor` warns from the same ones on.
COARSE = 0.05  # the same model against itself
WAITING = 0.2  # share of the time in which a task waited for a processor
STOLEN = 0.02  # share of the processors' time


class _Pressure(BaseModel):
    some_total_us: int


class _Processors(BaseModel):
    processors: int


class _State(BaseModel):
    """One look at the machine, as `tasks.machine.Evidence` records it."""

    at_s: float
    machine: _Processors
    load_average: tuple[float, float, float]
    steal_s: float | None = None
    pressure: dict[str, _Pressure] = {}


@dataclass(frozen=True)
class Condition:
    """The machine during one workload's benchmark; None is what was not recorded.

    ``resolution`` is how far the same model was off 1 against its own copy, at the far end of the 95% interval;
    ``load`` that of the last minute before; ``waiting`` and ``stolen`` are shares of the benchmark's time.
    """

    workload: str
    resolution: float | None = None
    load: float | None = None
    processors: int | None = None
    waiting: float | None = None
    stolen: float | None = None
    undecided: int = 0

    @property
    def is_known(self) -> bool:
        """Whether anything was recorded that could have been trouble."""
        return any(each is not None for each in (self.resolution, self.waiting, self.stolen))

    @property
    def troubles(self) -> list[str]:
        """What makes the numbers worse than a quiet machine's."""
        found = []
        if self.resolution is not None and self.resolution > COARSE:
            found.append(f"the same model against itself was up to {percent(self.resolution)} off")
        if self.waiting is not None and self.waiting > WAITING:
            found.append(f"tasks waited for a processor in {percent(self.waiting)} of the time")
        if self.stolen is not None and self.stolen > STOLEN:
            found.append(f"{percent(self.stolen)} of the processors' time went to other machines on the host")
        return found


def conditions_of(runs: Sequence[Row], candidates: Mapping[str, Sequence[Row]]) -> list[Condition]:
    """The machine during each workload's benchmark, the last one of the night."""
    seen: dict[str, tuple[_State, _State]] = {}
    for run in runs:
        for each in json.loads(str(run["evidence"] or "[]")):
            ends = (_State.model_validate_json(each[when]) for when in ("before", "after"))
            seen[str(each["workload"])] = (next(ends), next(ends))
    return [_condition(name, rows, seen.get(name)) for name, rows in candidates.items()]


def _condition(workload: str, rows: Sequence[Row], seen: tuple[_State, _State] | None) -> Condition:
    ends = [(low, high) for row in rows if None not in (low := number(row, "aa_low"), high := number(row, "aa_high"))]
    resolution = max((max(abs(1 - (low or 1)), abs((high or 1) - 1)) for low, high in ends), default=None)
    undecided = sum(row["decision"] == "hold" for row in rows)
    if seen is None:
        return Condition(workload, resolution, undecided=undecided)
    before, after = seen
    took, processors = max(after.at_s - before.at_s, 1e-9), after.machine.processors
    waiting = stolen = None
    if "cpu" in before.pressure and "cpu" in after.pressure:
        waiting = (after.pressure["cpu"].some_total_us - before.pressure["cpu"].some_total_us) / 1e6 / took
    if before.steal_s is not None and after.steal_s is not None:
        stolen = (after.steal_s - before.steal_s) / took / processors
    return Condition(workload, resolution, before.load_average[0], processors, waiting, stolen, undecided)
