"""Immutable objects of a search: its data, trials, measurements, and the requests of a `tasks.search.race.Race`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

from pydantic import SerializeAsAny

from storage.digest import canonical_json
from storage.errors import InputError, MeasurementError
from storage.results import QualityUnit, Row, TrialOrigin
from tasks.values.job import Job
from tasks.values.refs import DatasetRef, Frozen
from tasks.values.results import Comparison, Evaluation, RunInfo
from tasks.workload.recipe import CandidateName, Recipe
from tasks.workload.workload import Workload

Outcome = Literal["open", "passing", "chosen", "dropped", "failed"]
_SPLITS = ("valid", "train", "calibration")
_SIZES = (256, 1024)


@dataclass(frozen=True)
class Selection:
    """The split on which a search chooses recipes, and the increasing numbers of samples for screening trials."""

    split: str
    samples: tuple[int, ...]

    @classmethod
    def of(cls, dataset: DatasetRef) -> Self:
        """Choose a split that the gate does not use, with at most as many training samples as the test split has."""
        usable = {split: dataset.samples(split) for split in _SPLITS}
        usable["train"] = min(usable["train"], dataset.samples("test"))
        split = next(filter(usable.get, _SPLITS), None)
        if split is None:
            raise InputError(
                f'A search needs a "valid", "train" or "calibration" split, but the data set has only these splits: '
                f"{', '.join(dataset.splits)}.",
                hint='Add a "valid" split to [data], or remove [search].',
            )
        size = usable[split]
        return cls(split, (*(smaller for smaller in _SIZES if smaller < size), size))

    def job(self, job: Job[Workload], samples: int) -> Job[Workload]:
        """Return a job that evaluates candidates on `samples` samples of this split."""
        dataset = job.dataset.model_copy(update={"judged_on": self.split, "at_most": samples})
        return replace(job, dataset=dataset)


class Drop(Frozen):
    """A quality loss on `samples` samples, with its 95% interval; a negative loss is a gain."""

    value: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, comparison: Comparison, baseline: Evaluation, unit: QualityUnit) -> Self:
        """Return the loss of a candidate that was compared with the baseline on the same samples."""
        difference = comparison.quality_difference
        ends = [comparison.quality_difference_low, comparison.quality_difference_high]
        sign = -1.0 if baseline.higher_is_better else 1.0
        scale = abs(baseline.quality) if unit == "relative" else 1.0
        if not scale:
            raise MeasurementError(
                f"The baseline's {baseline.quality_metric} is 0, so the relative quality loss is undefined.",
                hint='Set quality_drop = "absolute" in [search].',
            )
        low, high = sorted(sign * (difference if end is None else end) / scale for end in ends)
        return cls(value=sign * difference / scale, low=low, high=high, samples=baseline.samples)


class Speed(Frozen):
    """A speed-up over the baseline with its 95% interval, measured in `launches` launches."""

    value: float
    low: float
    high: float
    launches: int


class RankedLayer(Frozen):
    """A quantized layer, its signal-to-quantization-noise ratio, and its share of the float model's time."""

    module: str
    type: str
    sqnr_db: float
    time_share: float


class Found(Frozen):
    """Answer to a request about one trial; if the trial failed, ``failed`` contains the reason."""

    size_bytes: int | None = None
    drop: Drop | None = None
    speed: Speed | None = None
    layers: tuple[RankedLayer, ...] | None = None
    failed: str = ""
    waited_s: float = 0.0


class Timed(Frozen):
    """Speeds from one measurement, keyed by trial name, and the reasons for trials that were refused."""

    speeds: dict[CandidateName, Speed]
    refused: dict[CandidateName, str]
    waited_s: float = 0.0


class Trial(Frozen):
    """A recipe in one runtime, with its measurements and its outcome; trials are numbered from 1.

    A ``passing`` trial satisfies the bounds, and a ``chosen`` trial is a finalist. A ``failed`` trial ended with an
    error, or lost too much quality. A ``dropped`` trial cannot work or cannot win. ``cost_s`` is the time spent on the
    trial in this run. If ``known`` is true, all of the trial's measurements come from an earlier run.
    """

    number: int
    recipe: SerializeAsAny[Recipe]
    runtime: str
    origin: TrialOrigin
    parent: str = ""
    size_bytes: int | None = None
    drop: Drop | None = None
    speed: Speed | None = None
    outcome: Outcome = "open"
    reason: str = ""
    cost_s: float = 0.0
    known: bool = False

    @property
    def name(self) -> CandidateName:
        """Name of the candidate."""
        return CandidateName(self.recipe.name, self.runtime)

    def row(self, run: RunInfo, workload: str, split: str, unit: QualityUnit, fingerprint: str) -> Row:
        """Return the trial's row of the ``trials`` table; `split` is the selection split."""
        drop, speed = self.drop, self.speed
        return {
            "run_id": run.run_id,
            "night": run.night,
            "workload": workload,
            "trial": self.number,
            "recipe": self.recipe.name,
            "runtime": self.runtime,
            "method": self.recipe.method,
            "settings": canonical_json(self.recipe.content()),
            "origin": self.origin,
            "parent": self.parent or None,
            "outcome": self.outcome,
            "reason": self.reason or None,
            "split": split,
            "samples": drop.samples if drop else None,
            "quality_drop": drop.value if drop else None,
            "quality_drop_low": drop.low if drop else None,
            "quality_drop_high": drop.high if drop else None,
            "quality_unit": unit,
            "size_bytes": self.size_bytes,
            "speedup": speed.value if speed else None,
            "speedup_low": speed.low if speed else None,
            "speedup_high": speed.high if speed else None,
            "launches": speed.launches if speed else None,
            "cost_s": self.cost_s,
            "is_known": self.known,
            "fingerprint": fingerprint,
        }


class Build(Frozen):
    """A request to build trials; the answer for each trial is a size in bytes."""

    numbers: tuple[int, ...]


class Screen(Frozen):
    """A request to evaluate trials on `samples` samples of the selection split; each answer is a `Drop`."""

    numbers: tuple[int, ...]
    samples: int


class Time(Frozen):
    """A request to time trials in one measurement; the answer for each trial is a `Speed`."""

    numbers: tuple[int, ...]


class Rank(Frozen):
    """A request to rank a trial's layers; the answer lists the layers, beginning with the first to keep in float."""

    numbers: tuple[int]


Request: TypeAlias = Build | Screen | Time | Rank
