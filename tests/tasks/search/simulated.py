"""Simulated trials with true losses, speeds and sizes, and a driver that answers a race's requests with noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hypothesis import strategies as st

from tasks.quantize.methods import DynamicRecipe
from tasks.search.race import MOST_FLOAT, Race
from tasks.search.trial import Build, Drop, Found, Rank, RankedLayer, Request, Screen, Speed, Time, Trial
from tasks.workload.recipe import Recipe

SAMPLES = (16, 64, 256)
RUNTIME = "torchscript"


def ask(race: Race) -> Request | None:
    """The most urgent request, or None if no undecided trial can win."""
    return next(iter(race.requests()), None)


@dataclass(frozen=True)
class Truth:
    """A trial's true loss, its variant's loss, speed and size, and by layer the share of the loss and of the time."""

    loss: float
    variant_loss: float
    speed: float
    size: int
    relief: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def most(self) -> int:
        """The most layers that a repair may keep in float."""
        fitting = sum(share <= MOST_FLOAT for share in accumulate(self.shares))
        return min(fitting, len(self.shares) - 1)

    def of(self, recipe: Recipe) -> tuple[float, float, int]:
        """The loss, speed and size of this trial's recipe, a variant, or either with layers in float."""
        assert isinstance(recipe, DynamicRecipe)
        kept = len(recipe.exclude) - 1
        share = 1 - sum(self.relief[:kept]) / sum(self.relief)
        loss = (self.variant_loss if recipe.per_channel else self.loss) * share
        return loss, self.speed / (1 + sum(self.shares[:kept])), self.size + kept


@dataclass
class World:
    """The truths of a race's trials, whose numbers begin at 1; `asked` collects what was asked of which trial."""

    truths: Sequence[Truth]
    noise: float = 0.0
    seed: int = 0
    asked: list[tuple[str, str, int]] = field(default_factory=list)

    def trials(self) -> list[Trial]:
        """The trials of the space."""
        return [
            Trial(number=number, recipe=_recipe(number), runtime=RUNTIME, origin="space")
            for number in range(1, len(self.truths) + 1)
        ]

    def truth(self, trial: Trial) -> tuple[float, float, int]:
        """A trial's loss, speed and size."""
        return self.truths[int(trial.recipe.exclude[0]) - 1].of(trial.recipe)

    def variants(self, trial: Trial) -> list[Recipe]:
        """The only variant of a trial."""
        name = trial.recipe.name + "-per-channel"
        return [trial.recipe.model_copy(update={"per_channel": True, "name": name})]

    def answer(self, race: Race, request: Request) -> None:
        """Answer a request for every trial; the true value is always within the interval."""
        for number in request.numbers:
            self.answer_one(race, request, number)

    def answer_one(self, race: Race, request: Request, number: int) -> None:
        """Answer a request for one trial, with numbers that depend on the seed and on the question only."""
        trial = race.board.trials[number - 1]
        samples = request.samples if isinstance(request, Screen) else 0
        question = (type(request).__name__, str(trial.name), samples)
        self.asked.append(question)
        noise, (loss, speed, size) = random.Random(f"{self.seed} {question}"), self.truth(trial)
        match request:
            case Build():
                race.record(number, Found(size_bytes=size), cost_s=1.0)
            case Screen():
                half = self.noise * (SAMPLES[0] / samples) ** 0.5
                value = loss + noise.uniform(-half, half)
                race.record(number, Found(drop=Drop(value=value, low=value - half, high=value + half, samples=samples)))
            case Time():
                value = speed * (1 + self.noise * noise.uniform(-0.1, 0.1))
                ends = value * (1 - 0.2 * self.noise), value * (1 + 0.2 * self.noise)
                race.record(number, Found(speed=Speed(value=value, low=ends[0], high=ends[1], launches=2)))
            case Rank():
                shares = self.truths[int(trial.recipe.exclude[0]) - 1].shares
                layers = [
                    RankedLayer(module=f"layer{index}", type="Linear", sqnr_db=30, time_share=share)
                    for index, share in enumerate(shares)
                ]
                race.record(number, Found(layers=layers))

    def run(self, race: Race, most: int = 10_000) -> None:
        """Answer until the race ends, or until `most` answers."""
        while len(self.asked) < most and (request := ask(race)):
            assert ask(race) == request
            self.answer(race, request)


def _recipe(number: int) -> DynamicRecipe:
    return DynamicRecipe(name=f"r{number}", method="dynamic", runtimes=(RUNTIME,), exclude=(str(number),))


_layers = st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.01, 0.5)), min_size=1, max_size=9)
truths = st.builds(
    lambda loss, variant, speed, size, layers: Truth(
        loss, variant, speed, size, tuple(relief for relief, _ in layers), tuple(share for _, share in layers)
    ),
    st.floats(-0.5, 4),
    st.floats(-0.5, 4),
    st.floats(0.5, 3),
    st.integers(100, 1000),
    _layers,
)
