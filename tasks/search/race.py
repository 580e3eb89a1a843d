"""The strategy of a search: decide what to measure next.

All trials are first evaluated on few samples, and only trials that can still win are measured further. See Maron and
Moore, "Hoeffding races: accelerating model selection search for classification and function approximation", NIPS 6,
1994.

A trial that violates the bound on quality is repaired if a repair could beat the best trial: first with other observers
and granularities, and then with layers in float. See Land and Doig, "An automatic method of solving discrete
programming problems", Econometrica 28, 1960: the bound of a branch is the failed trial's speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from storage.digest import canonical_json
from storage.results import TrialOrigin
from tasks.quantize.spec import excluding, renamed
from tasks.search.scoreboard import Scoreboard
from tasks.search.trial import Build, Found, Rank, RankedLayer, Request, Screen, Time, Trial
from tasks.workload.recipe import Recipe

# Largest share of the float model's time that layers in float may take. If float layers take a larger share of the
# time, int8 saves little.
MOST_FLOAT = 0.6


@dataclass
class Repair:
    """The state of a repair, which doubles the number of layers in float until a trial passes, and then bisects.

    ``members`` are the failed trial (``root``) and its variants. ``fails`` layers in float are too few, ``passes``
    enough.
    """

    root: int
    members: list[int] = field(default_factory=list)
    tried: int = 0  # number of the last trial with layers in float
    count: int = 0  # number of layers in float in the last trial
    fails: int = 0
    passes: int | None = None
    is_done: bool = False

    def learn(self, *, failed: bool, passed: bool, can_win: bool) -> None:
        """Record the last trial's outcome; end the repair if the trial cannot win even with fewer layers in int8."""
        if passed or (self.passes is not None and not failed):
            self.passes = self.count
        else:
            self.fails = self.count
            self.is_done |= self.passes is None and not can_win

    def next_count(self, layers: Sequence[RankedLayer]) -> int:
        """Return the number of layers to keep in float next, or 0 at the end of the repair."""
        shares = accumulate(layer.time_share for layer in layers)
        most = min(sum(share <= MOST_FLOAT for share in shares), len(layers) - 1)
        if self.passes is not None:
            self.count = (self.fails + self.passes) // 2
            self.is_done |= self.passes - self.fails <= 1
        else:
            self.count = min(max(1, 2 * self.fails), most)
            self.is_done |= self.fails >= most
        return 0 if self.is_done else self.count


@dataclass
class Race:
    """A search in progress, with methods that choose the next measurement of the trials on its ``board``.

    ``variants`` returns recipes that are as fast as a trial's recipe. At most ``batch`` new trials are built, screened
    and timed together.
    """

    board: Scoreboard
    variants: Callable[[Trial], Sequence[Recipe]]
    keep_float: bool = True
    batch: int = 8
    _started: list[int] = field(default_factory=list)  # numbers of the trials in the current batch
    # Number of batches started so far. After each batch, the search tries to repair the best failed trial,
    # because the budget may run out before the next batch.
    _batches: int = 0
    _aside: set[int] = field(default_factory=set)  # trials that no request contains anymore
    _layers: dict[str, tuple[RankedLayer, ...]] = field(default_factory=dict)  # ranked layers, keyed by recipe content
    _repairs: list[Repair] = field(default_factory=list)  # all repairs so far; only the last repair can be in progress

    def requests(self) -> list[Request]:
        """Return the requests that can be answered now, most urgent first, or [] if no undecided trial can win."""
        while True:
            if requests := self._advance() or self._decide():
                return requests
            waiting = _numbers(trial for trial in self._wanted() if trial.size_bytes is None)
            if repair := self._next_repair(waiting):
                if rank := self._continue(repair):
                    return [rank]
            elif waiting:
                self._batches += 1
                self._started = self._next_batch(waiting)
            else:
                return []

    def set_aside(self, numbers: Iterable[int]) -> None:
        """Request nothing more about these trials, because the rest of the budget is too small for the next step."""
        self._aside |= set(numbers)

    def undecided(self) -> list[Trial]:
        """Return the trials that could still win, alone or after a repair; unlike `requests`, this starts nothing."""
        repairing = {repair.root for repair in self._repairs if not repair.is_done}
        repaired = {repair.root for repair in self._repairs if self._aside.isdisjoint({*repair.members, repair.tried})}
        return [
            trial
            for trial in self.board.trials
            if trial.outcome == "open"
            or trial.number in repairing
            or (trial.number not in repaired and self._is_root(trial))
        ]

    def follow_ups(self, request: Request) -> list[Request]:
        """Return the requests that must follow for a request's answer to matter."""
        if not isinstance(request, Build):
            return []
        screen = Screen(numbers=request.numbers, samples=self.board.samples[0])
        return [screen, *([Time(numbers=request.numbers)] if self._is_timed else [])]

    def record(self, number: int, found: Found, *, cost_s: float = 0.0, known: bool = False) -> None:
        """Record the answer for one trial of a request; `Scoreboard.record` describes the parameters."""
        self.board.record(number, found, cost_s=cost_s, known=known)
        if found.layers is not None:
            self._layers[_content(self.board.trials[number - 1].recipe)] = found.layers
        self.board.settle(self._needs_time)

    def _advance(self) -> list[Request]:
        """Return requests to build, screen and time the batch in progress, or [] if the batch is complete."""
        started = self.board.numbered([number for number in self._started if number not in self._aside])
        alive = [trial for trial in started if trial.outcome == "open"]
        built = [trial for trial in alive if trial.size_bytes is not None]
        screened = [trial for trial in started if trial.drop is not None and self._needs_time(trial)]
        requests: list[Request] = [
            Build(numbers=_numbers(trial for trial in alive if trial.size_bytes is None)),
            Screen(numbers=_numbers(trial for trial in built if trial.drop is None), samples=self.board.samples[0]),
            Time(numbers=_numbers(screened)),
        ]
        return [request for request in requests if request.numbers]

    def _next_batch(self, waiting: Sequence[int]) -> list[int]:
        """Choose at most ``batch`` trials; trials similar to the best trial or to one too large come first."""
        best, timed = self.board.best(), {_pair(trial) for trial in self.board.trials if trial.speed}
        too_large = [_pair(trial) for trial in self.board.of("dropped") if self.board.excess(trial)]
        related = [*([_pair(best)] if best else []), *(pair for pair in too_large if pair not in timed)]
        return sorted(waiting, key=lambda number: _pair(self.board.trials[number - 1]) not in related)[: self.batch]

    def _decide(self) -> list[Request]:
        """Request a screening of undecided trials on more samples; skip trials that are certainly not the best."""
        undecided = [trial for trial in self._wanted() if trial.drop]
        if not undecided:
            return []
        leads = max(self.board.ends(trial)[0] for trial in undecided)
        undecided = [trial for trial in undecided if self.board.ends(trial)[1] >= leads]
        samples = min(map(self.board.next_samples, undecided))
        numbers = _numbers(trial for trial in undecided if self.board.next_samples(trial) == samples)
        return [Screen(numbers=numbers, samples=samples)]

    def _next_repair(self, waiting: Sequence[int]) -> Repair | None:
        """Return the repair in progress, or begin to repair the best trial that failed, if the repair is urgent.

        While trials are `waiting`, each batch is followed by at most one repair, of a trial that is better than the
        best passing trial.
        """
        if self._repairs and not self._repairs[-1].is_done:
            return self._repairs[-1]
        if waiting and len(self._repairs) >= self._batches:
            return None
        begun, best = {repair.root for repair in self._repairs}, self.board.best()
        failed = [trial for trial in self.board.trials if trial.number not in begun and self._is_root(trial)]
        if waiting and best:
            failed = [trial for trial in failed if self.board.value(trial) > self.board.value(best)]
        if not failed:
            return None
        self._repairs.append(Repair(max(failed, key=lambda trial: (self.board.value(trial), -trial.number)).number))
        return self._repairs[-1]

    def _continue(self, repair: Repair) -> Rank | None:
        """Add the next trials of a repair, or request a ranking of the layers."""
        root = self.board.trials[repair.root - 1]
        if not repair.members:
            self._started = self._add(root, "variant", self.variants(root))
            repair.members = [repair.root, *self._started]
            return None
        members = self.board.numbered(repair.members)
        bases = [trial for trial in members if self.board.is_repairable(trial) and self._keeps_float(trial)]
        is_aside = not self._aside.isdisjoint({*repair.members, repair.tried})
        if is_aside or not bases or any(trial.outcome == "passing" for trial in members):
            repair.is_done = True
            return None
        base = min(bases, key=lambda trial: (trial.drop.value if trial.drop else math.inf, trial.number))
        layers = self._layers.get(_content(base.recipe))
        if layers is None:
            return Rank(numbers=(base.number,))
        if repair.tried:
            last = self.board.trials[repair.tried - 1]
            can_win = self.board.can_win(last)
            repair.learn(failed=last.outcome == "failed", passed=last.outcome == "passing", can_win=can_win)
        if count := repair.next_count(layers):
            types = {layer.module: layer.type for layer in layers}
            recipe = renamed(excluding(base.recipe, types, count), base.recipe.name)
            self._started = self._add(base, "kept-float", [recipe])
            (repair.tried,) = self._started
        return None

    def _add(self, parent: Trial, origin: TrialOrigin, recipes: Iterable[Recipe]) -> list[int]:
        """Return the numbers of the trials with these recipes; add trials for new recipes."""
        numbers, trials, name = [], self.board.trials, str(parent.name)
        for recipe in recipes:
            same = (
                trial.number
                for trial in trials
                if (trial.runtime, _content(trial.recipe)) == (parent.runtime, _content(recipe))
            )
            number = next(same, len(trials) + 1)
            numbers.append(number)
            if number > len(trials):
                new = Trial(number=number, recipe=recipe, runtime=parent.runtime, origin=origin, parent=name)
                trials.append(new)
        return numbers

    def _wanted(self) -> list[Trial]:
        return [trial for trial in self.board.of("open") if trial.number not in self._aside]

    def _needs_time(self, trial: Trial) -> bool:
        """Return whether the speed of a trial is needed to decide whether the trial or its repair can win."""
        deserves = trial.outcome == "open" or self._is_root(trial)
        return self._is_timed and deserves and trial.speed is None and not self.board.is_broken(trial)

    @property
    def _is_timed(self) -> bool:
        return self.board.objective != "smallest" or self.board.min_speedup is not None

    def _is_root(self, trial: Trial) -> bool:
        """Return whether a trial can be repaired with variants of its recipe or with layers in float."""
        is_first = trial.origin in ("written", "space")
        return is_first and self.board.is_repairable(trial) and (self._keeps_float(trial) or bool(self.variants(trial)))

    def _keeps_float(self, trial: Trial) -> bool:
        return self.keep_float and trial.recipe.quantizes


def _numbers(trials: Iterable[Trial]) -> tuple[int, ...]:
    return tuple(trial.number for trial in trials)


def _pair(trial: Trial) -> tuple[str, str]:
    return trial.recipe.method, trial.runtime


def _content(recipe: Recipe) -> str:
    return canonical_json(recipe.content())
