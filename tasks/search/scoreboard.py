"""The trials of a search, with their measurements, and the rules that determine a trial's outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tasks.search.trial import Drop, Found, Outcome, Trial
from tasks.workload.gate import Objective


@dataclass
class Scoreboard:
    """Trials, numbered from 1, with the bounds that they must satisfy.

    A trial passes if its quality loss is at most ``bound`` and it can still satisfy the bounds on speed and size. The
    loss is measured on increasing numbers of samples until its interval excludes the bound; on all samples, the
    estimate decides. Passing trials are ranked by speed, or by size if the objective is ``smallest``.
    """

    objective: Objective
    bound: float
    samples: tuple[int, ...]
    trials: list[Trial]
    min_speedup: float | None = None
    max_size_bytes: float | None = None
    _screened: dict[int, int] = field(default_factory=dict)  # number of sample sizes at which a trial was screened
    # Results for decided trials, keyed by trial number: True if the trial satisfies the bound on quality.
    _decided: dict[int, bool] = field(default_factory=dict)
    _broken: set[int] = field(default_factory=set)

    def record(self, number: int, found: Found, *, cost_s: float = 0.0, known: bool = False) -> None:
        """Record an answer about a trial; `known` answers come from an earlier run."""
        trial = self.trials[number - 1]
        is_first = trial.size_bytes is None
        changes: dict[str, object] = {"cost_s": trial.cost_s + cost_s, "known": known and (is_first or trial.known)}
        measured = {"size_bytes": found.size_bytes, "drop": found.drop, "speed": found.speed}
        changes |= {name: value for name, value in measured.items() if value is not None}
        self.trials[number - 1] = trial.model_copy(update=changes)
        if found.drop:
            self._judge(trial, found.drop)
        if found.failed:
            self._broken.add(number)
            self._end(number, "failed", "; ".join(filter(None, (trial.reason, found.failed))))

    def settle(self, needs_time: Callable[[Trial], bool]) -> None:
        """Mark open trials as passing or dropped if that is certain; trials that still `needs_time` stay open."""
        for trial in self.of("open"):
            if reason := self.excess(trial):
                self._end(trial.number, "dropped", reason)
            elif self._decided.get(trial.number) and not needs_time(trial):
                self._end(trial.number, "passing", "")
        for trial in self.of("open"):
            if not self.can_win(trial):
                self._end(trial.number, "dropped", f"cannot be better than {self._leader().name}")

    def of(self, outcome: Outcome) -> list[Trial]:
        """Return the trials with this outcome, ordered by number."""
        return [trial for trial in self.trials if trial.outcome == outcome]

    def numbered(self, numbers: Collection[int]) -> list[Trial]:
        """Return the trials with these numbers, in the order of `numbers`."""
        return [self.trials[number - 1] for number in numbers]

    def finalists(self, count: int) -> list[Trial]:
        """Return at most `count` of the passing trials, best first, with the outcome ``chosen``."""
        passing = sorted(self.of("passing"), key=lambda trial: (-self.value(trial), trial.number))
        return [trial.model_copy(update={"outcome": "chosen"}) for trial in passing[:count]]

    def best(self) -> Trial | None:
        """Return the best passing trial so far."""
        return next(iter(self.finalists(1)), None)

    def results(self, count: int) -> list[Trial]:
        """Return all trials, ordered by number; the `count` finalists have the outcome ``chosen``."""
        chosen = {trial.number: trial for trial in self.finalists(count)}
        return [chosen.get(trial.number, trial) for trial in self.trials]

    def value(self, trial: Trial) -> float:
        """Return a trial's objective, as measured; larger values are better."""
        if self.objective == "smallest":
            return -math.inf if trial.size_bytes is None else -trial.size_bytes
        return trial.speed.value if trial.speed else -math.inf

    def ends(self, trial: Trial) -> tuple[float, float]:
        """Return the interval of a trial's objective; a repair cannot be better than its parent."""
        if self.objective == "smallest" and trial.size_bytes is not None:
            return -trial.size_bytes, -trial.size_bytes
        if self.objective != "smallest" and trial.speed:
            return trial.speed.low, trial.speed.high
        parent = next((other for other in self.trials if str(other.name) == trial.parent), None)
        return -math.inf, self.ends(parent)[1] if parent else math.inf

    def can_win(self, trial: Trial) -> bool:
        """Return whether a trial can still be better than all passing trials."""
        return not self.of("passing") or self.ends(trial)[1] > self.ends(self._leader())[0]

    def excess(self, trial: Trial) -> str:
        """Describe how a trial violates a bound on size or speed; return ``""`` if no violation is certain."""
        size, speed = trial.size_bytes, trial.speed
        if size and self.max_size_bytes and size > self.max_size_bytes:
            return f"{size:,} bytes are more than {self.max_size_bytes:,.0f}"
        if speed and self.min_speedup and speed.high < self.min_speedup:
            return f"at most {speed.high:.3g} times as fast as the baseline, and {self.min_speedup:.3g} is required"
        return ""

    def is_broken(self, trial: Trial) -> bool:
        """Return whether a measurement of this trial failed."""
        return trial.number in self._broken

    def is_repairable(self, trial: Trial) -> bool:
        """Return whether a trial violates only the bound on quality and could still win after a repair."""
        is_failed = self._decided.get(trial.number) is False and not self.is_broken(trial)
        return is_failed and self.can_win(trial) and not self.excess(trial)

    def next_samples(self, trial: Trial) -> int:
        """Return the number of samples on which to screen a trial next."""
        return self.samples[self._screened.get(trial.number, 0)]

    def _judge(self, trial: Trial, drop: Drop) -> None:
        """Decide whether a trial satisfies the bound on quality, or leave the trial undecided."""
        screened = self._screened[trial.number] = self._screened.get(trial.number, 0) + 1
        is_last = screened == len(self.samples) or bool(trial.drop and trial.drop.samples == drop.samples)
        if drop.high <= self.bound or (is_last and drop.value <= self.bound):
            self._decided[trial.number] = True
        elif drop.low > self.bound or is_last:
            self._decided[trial.number] = False
            loss = f"loses {drop.value:.3g} ({drop.low:.3g} to {drop.high:.3g}) on {drop.samples:,} samples"
            self._end(trial.number, "failed", f"{loss}, and at most {self.bound:.3g} is allowed")

    def _end(self, number: int, outcome: Outcome, reason: str) -> None:
        trial = self.trials[number - 1]
        self.trials[number - 1] = trial.model_copy(update={"outcome": outcome, "reason": reason})

    def _leader(self) -> Trial:
        """Return the passing trial whose interval for the objective has the highest lower end."""
        return max(self.of("passing"), key=lambda trial: self.ends(trial)[0])
