"""The strategy of a search: decide what to measure next.

A race does not measure anything: it requests measurements, and bases its decisions on the answers. All trials are first
evaluated on a small number of samples, and only trials that can still win are measured further. See Maron and Moore,
"Hoeffding races: accelerating model selection search for classification and function approximation", NIPS 6, 1994.

A trial that violates the bound on quality is repaired if a repair could beat the best trial. Repairs first try other
observers and granularities, and then keep layers in float. Repairs use branch and bound. See Land and Doig, "An
automatic method of solving discrete programming problems", Econometrica 28, 1960. A repair is a branch whose bound is
the failed trial's speed, because keeping layers in float does not make a trial faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from storage.digest import canonical_json
from tasks.extensions import METHODS
from tasks.search.repair import Repair
from tasks.search.space import kept_float
from tasks.search.trial import Build, Drop, Origin, Outcome, Rank, RankedLayer, Request, Screen, Speed, Time, Trial
from tasks.workload.recipe import Recipe


def _no_variants(trial: Trial) -> Sequence[Recipe]:
    return ()


@dataclass
class Race:
    """The trials of a search, with methods that choose the next measurement.

    A trial passes if its quality loss is at most ``bound`` and it can still satisfy the bounds on speed and size. The
    loss is measured on increasing numbers of samples (``samples``) until its interval excludes the bound. If the
    interval from all samples still includes the bound, the estimate is compared with the bound. ``variants`` returns
    recipes that are as fast as a trial's recipe. At most ``batch`` new trials are built, screened and timed together.
    """

    objective: Literal["fastest", "smallest"]
    bound: float
    samples: tuple[int, ...]
    trials: list[Trial]
    variants: Callable[[Trial], Sequence[Recipe]] = _no_variants
    keep_float: bool = True
    min_speedup: float | None = None
    max_size_bytes: float | None = None
    batch: int = 8
    _started: list[int] = field(default_factory=list)  # numbers of the trials in the current batch
    # Number of batches started so far. After each batch, the search tries to repair the best failed trial,
    # because the budget may run out before the next batch.
    _batches: int = 0
    _screened: dict[int, int] = field(default_factory=dict)  # number of sample sizes at which a trial was screened
    # Results for decided trials, keyed by trial number: True if the trial satisfies the bound on quality.
    _decided: dict[int, bool] = field(default_factory=dict)
    _broken: set[int] = field(default_factory=set)
    _aside: set[int] = field(default_factory=set)  # trials that no request contains anymore
    _layers: dict[str, tuple[RankedLayer, ...]] = field(default_factory=dict)  # ranked layers, keyed by recipe content
    _repairs: list[Repair] = field(default_factory=list)  # all repairs so far; only the last repair can be in progress

    def ask(self) -> Request | None:
        """Return the next request, or None if no undecided trial can win; an unanswered request is returned again."""
        return next(iter(self.requests()), None)

    def requests(self) -> list[Request]:
        """Return the requests that can be answered now, most urgent first, or [] if no undecided trial can win.

        Trials that are built can be screened while other trials are being built, and can be timed without trials whose
        builds would take too long.
        """
        while True:
            if requests := self._advance() or self._decide():
                return requests
            waiting = _numbers(trial for trial in self._wanted() if trial.size_bytes is None)
            if repair := self._next_repair(is_due=not waiting or len(self._repairs) < self._batches):
                if rank := self._continue(repair):
                    return [rank]
            elif waiting:
                self._batches += 1
                self._started = self._next_batch(waiting)
            else:
                return []

    def set_aside(self, numbers: Iterable[int]) -> None:
        """Request nothing more about these trials, because the rest of the budget is too small for the next step.

        The trials keep their outcomes. The race continues with other trials.
        """
        self._aside |= set(numbers)

    def is_decided(self) -> bool:
        """Return whether no undecided trial can win."""
        aside = [self.trials[number - 1] for number in self._aside]
        return self.ask() is None and not any(one.outcome == "open" or self._is_repairable(one) for one in aside)

    def tell(
        self,
        number: int,
        *,
        size_bytes: int | None = None,
        drop: Drop | None = None,
        speed: Speed | None = None,
        layers: Sequence[RankedLayer] | None = None,
        failed: str = "",
        cost_s: float = 0.0,
        known: bool = False,
    ) -> None:
        """Record the answer for one trial of a request, or the reason why the trial ``failed``.

        Parameters
        ----------
        known
            Whether the answer comes from an earlier run.
        """
        trial = self.trials[number - 1]
        is_first = trial.size_bytes is None
        changes: dict[str, object] = {"cost_s": trial.cost_s + cost_s, "known": known and (is_first or trial.known)}
        measured = {"size_bytes": size_bytes, "drop": drop, "speed": speed}
        changes |= {name: value for name, value in measured.items() if value is not None}
        self.trials[number - 1] = trial.model_copy(update=changes)
        if drop:
            self._judge(trial, drop)
        if layers is not None:
            self._layers[_content(trial.recipe)] = tuple(layers)
        if failed:
            self._broken.add(number)
            self._end(number, "failed", "; ".join(filter(None, (trial.reason, failed))))
        self._settle()

    def best(self) -> Trial | None:
        """Return the best passing trial so far."""
        return next(iter(self.finalists(1)), None)

    def finalists(self, count: int) -> list[Trial]:
        """Return at most `count` of the passing trials, best first, with the outcome ``chosen``."""
        passing = sorted(self._passing(), key=lambda trial: (-self._value(trial), trial.number))
        return [trial.model_copy(update={"outcome": "chosen"}) for trial in passing[:count]]

    def results(self, count: int) -> list[Trial]:
        """Return all trials, ordered by number; the `count` finalists have the outcome ``chosen``."""
        chosen = {trial.number: trial for trial in self.finalists(count)}
        return [chosen.get(trial.number, trial) for trial in self.trials]

    def _advance(self) -> list[Request]:
        """Return requests to build, screen and time the batch in progress, or [] if the batch is complete."""
        started = [self.trials[number - 1] for number in self._started if number not in self._aside]
        alive = [trial for trial in started if trial.outcome == "open"]
        built = [trial for trial in alive if trial.size_bytes is not None]
        screened = [trial for trial in started if trial.drop is not None and self._needs_time(trial)]
        requests: list[Request] = [
            Build(numbers=_numbers(trial for trial in alive if trial.size_bytes is None)),
            Screen(numbers=_numbers(trial for trial in built if trial.drop is None), samples=self.samples[0]),
            Time(numbers=_numbers(screened)),
        ]
        return [request for request in requests if request.numbers]

    def _next_batch(self, waiting: Sequence[int]) -> list[int]:
        """Choose at most ``batch`` trials; prefer trials with the method and the runtime of the best passing trial."""
        best = self.best()
        related = [number for number in waiting if best and _pair(self.trials[number - 1]) == _pair(best)]
        return list((related or waiting)[: self.batch])

    def _decide(self) -> list[Request]:
        """Request a screening of undecided trials on more samples; skip trials that are certainly not the best."""
        undecided = [trial for trial in self._wanted() if trial.drop]
        if not undecided:
            return []
        leads = max(self._ends(trial)[0] for trial in undecided)
        undecided = [trial for trial in undecided if self._ends(trial)[1] >= leads]
        step = min(self._screened[trial.number] for trial in undecided)
        numbers = _numbers(trial for trial in undecided if self._screened[trial.number] == step)
        return [Screen(numbers=numbers, samples=self.samples[step])]

    def _next_repair(self, *, is_due: bool) -> Repair | None:
        """Return the repair in progress or, if a repair is due, begin to repair the best trial that failed."""
        if self._repairs and not self._repairs[-1].is_done:
            return self._repairs[-1]
        if not is_due:
            return None
        begun = {repair.root for repair in self._repairs}
        failed = [trial for trial in self.trials if trial.number not in begun and self._is_root(trial)]
        if not failed:
            return None
        self._repairs.append(Repair(max(failed, key=lambda trial: (self._value(trial), -trial.number)).number))
        return self._repairs[-1]

    def _continue(self, repair: Repair) -> Rank | None:
        """Add the next trials of a repair, or request a ranking of the layers."""
        root = self.trials[repair.root - 1]
        if not repair.members:
            self._started = self._add(root, "variant", self.variants(root))
            repair.members = [repair.root, *self._started]
            return None
        members = [self.trials[number - 1] for number in repair.members]
        bases = [trial for trial in members if self._is_repairable(trial) and self._keeps_float(trial)]
        is_aside = not self._aside.isdisjoint({*repair.members, repair.tried})
        if is_aside or not bases or any(trial.outcome == "passing" for trial in members):
            repair.is_done = True
            return None
        base = min(bases, key=lambda trial: (trial.drop.value if trial.drop else math.inf, trial.number))
        layers = self._layers.get(_content(base.recipe))
        if layers is None:
            return Rank(numbers=(base.number,))
        if repair.tried:
            last = self.trials[repair.tried - 1]
            repair.learn(failed=last.outcome == "failed", passed=last.outcome == "passing", can_win=self._can_win(last))
        if count := repair.next_count(layers):
            self._started = self._add(base, "kept-float", [kept_float(base.recipe, layers, count)])
            (repair.tried,) = self._started
        return None

    def _add(self, parent: Trial, origin: Origin, recipes: Iterable[Recipe]) -> list[int]:
        """Return the numbers of the trials with these recipes; add trials for new recipes."""
        numbers = []
        for recipe in recipes:
            same = (
                trial.number
                for trial in self.trials
                if (trial.runtime, _content(trial.recipe)) == (parent.runtime, _content(recipe))
            )
            number = next(same, len(self.trials) + 1)
            numbers.append(number)
            if number > len(self.trials):
                new = Trial(number=number, recipe=recipe, runtime=parent.runtime, origin=origin, parent=parent.name)
                self.trials.append(new)
        return numbers

    def _judge(self, trial: Trial, drop: Drop) -> None:
        """Decide whether a trial satisfies the bound on quality, or leave the trial undecided.

        A trial stays undecided while the interval of its loss includes the bound. At the largest sample size, the
        estimate decides. If the interval decided, almost every trial would fail on a small selection split.
        """
        screened = self._screened[trial.number] = self._screened.get(trial.number, 0) + 1
        is_last = screened == len(self.samples) or bool(trial.drop and trial.drop.samples == drop.samples)
        if drop.high <= self.bound or (is_last and drop.value <= self.bound):
            self._decided[trial.number] = True
        elif drop.low > self.bound or is_last:
            self._decided[trial.number] = False
            loss = f"loses {drop.value:.3g} ({drop.low:.3g} to {drop.high:.3g}) on {drop.samples:,} samples"
            self._end(trial.number, "failed", f"{loss}, and at most {self.bound:.3g} is allowed")

    def _settle(self) -> None:
        """Mark open trials as passing if they satisfy all bounds, and as dropped if they cannot pass or cannot win."""
        for trial in self._open():
            if reason := self._excess(trial):
                self._end(trial.number, "dropped", reason)
            elif self._decided.get(trial.number) and not self._needs_time(trial):
                self._end(trial.number, "passing", "")
        for trial in self._open():
            if not self._can_win(trial):
                self._end(trial.number, "dropped", f"cannot be better than {self._leader().name}")

    def _excess(self, trial: Trial) -> str:
        """Describe how a trial violates a bound on size or speed; return ``""`` if no violation is certain."""
        size, speed = trial.size_bytes, trial.speed
        if size and self.max_size_bytes and size > self.max_size_bytes:
            return f"{size:,} bytes are more than {self.max_size_bytes:,.0f}"
        if speed and self.min_speedup and speed.high < self.min_speedup:
            return f"at most {speed.high:.3g} times as fast as the baseline, and {self.min_speedup:.3g} is required"
        return ""

    def _open(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.outcome == "open"]

    def _wanted(self) -> list[Trial]:
        return [trial for trial in self._open() if trial.number not in self._aside]

    def _end(self, number: int, outcome: Outcome, reason: str) -> None:
        trial = self.trials[number - 1]
        self.trials[number - 1] = trial.model_copy(update={"outcome": outcome, "reason": reason})

    def _passing(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.outcome == "passing"]

    def _leader(self) -> Trial:
        """Return the passing trial whose interval for the objective has the highest lower end."""
        return max(self._passing(), key=lambda trial: self._ends(trial)[0])

    def _can_win(self, trial: Trial) -> bool:
        return not self._passing() or self._ends(trial)[1] > self._ends(self._leader())[0]

    def _ends(self, trial: Trial) -> tuple[float, float]:
        """Return the interval of a trial's objective; larger values are better.

        A repair cannot be better than its parent.
        """
        if self.objective == "smallest" and trial.size_bytes is not None:
            return -trial.size_bytes, -trial.size_bytes
        if self.objective == "fastest" and trial.speed:
            return trial.speed.low, trial.speed.high
        parent = next((other for other in self.trials if trial.parent and other.name == trial.parent), None)
        return -math.inf, self._ends(parent)[1] if parent else math.inf

    def _value(self, trial: Trial) -> float:
        """Return a trial's objective, as measured; larger values are better."""
        if self.objective == "fastest":
            return trial.speed.value if trial.speed else -math.inf
        return -math.inf if trial.size_bytes is None else -trial.size_bytes

    def _needs_time(self, trial: Trial) -> bool:
        """Return whether the speed of a trial is needed to decide whether the trial or its repair can win."""
        if self.objective == "smallest" and self.min_speedup is None:
            return False
        repaired = self._repairs[-1] if self._repairs else None
        grows = bool(repaired and repaired.tried == trial.number and repaired.passes is None)
        deserves = trial.outcome == "open" or self._is_root(trial) or (grows and self._is_repairable(trial))
        return deserves and trial.speed is None and trial.number not in self._broken

    def _is_root(self, trial: Trial) -> bool:
        """Return whether a trial can be repaired with variants of its recipe or with layers in float."""
        is_first = trial.origin in ("written", "space")
        return is_first and self._is_repairable(trial) and (self._keeps_float(trial) or bool(self.variants(trial)))

    def _is_repairable(self, trial: Trial) -> bool:
        """Return whether a trial violates only the bound on quality and could still win after a repair."""
        is_failed = self._decided.get(trial.number) is False and trial.number not in self._broken
        return is_failed and self._can_win(trial) and not self._excess(trial)

    def _keeps_float(self, trial: Trial) -> bool:
        return self.keep_float and METHODS[trial.recipe.method].quantizes


def _numbers(trials: Iterable[Trial]) -> tuple[int, ...]:
    return tuple(trial.number for trial in trials)


def _pair(trial: Trial) -> tuple[str, str]:
    return trial.recipe.method, trial.runtime


def _content(recipe: Recipe) -> str:
    return canonical_json(recipe.content())
