"""Quality on arrival: what candidates lose on a sample of the test split, before a night is spent on them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from storage.errors import MeasurementError, NightquantError
from tasks.build import build_candidate, open_candidate
from tasks.data.evaluation import Quality
from tasks.evaluate import INTERVALS
from tasks.extensions import DOMAINS, METHODS, RUNTIMES
from tasks.job import Job
from tasks.libraries import reported_as
from tasks.outputs import Call, intra_op_threads
from tasks.quantize.converted import KIND as CONVERTED
from tasks.quantize.source import ModelSource
from tasks.refs import CandidateRef
from tasks.results import NOTICED_LOSS, LayerSensitivity, QualityLoss
from tasks.sensitivity import excluding, sensitivity
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

_CALIBRATION = 64
_SAMPLES = (256, 1024)  # the second number if the first leaves open whether a loss is chance
_NAMED = 3
_MOST_S = 60.0  # that the float model may take for a sample, by the shortest of some calls
_CALLS = 5


@dataclass
class Arrival:
    """Compares candidates with the float model on the same test samples; `notes` say why if it does not."""

    job: Job[Workload]
    source: ModelSource
    notes: list[str] = field(default_factory=list)
    _float: dict[tuple[int, bool], Quality | None] = field(default_factory=dict)
    _rankings: dict[str, tuple[LayerSensitivity, ...]] = field(default_factory=dict)

    def sketch(self, recipe: Recipe) -> Recipe | None:
        """Return a recipe whose candidates can be compared; None if training is still to come or the model too slow."""
        is_plain = METHODS[recipe.method].quantizes and recipe.sketch().method == recipe.method
        is_real = self.job.workload.checkpoint.kind not in ("train", "seeded")
        return recipe.sketch(_CALIBRATION) if is_plain and is_real and self.counts else None

    def loss(self, recipe: Recipe, made: CandidateRef) -> QualityLoss | None:
        """Evaluate a candidate of a recipe; None if it loses little, or no more than chance explains.

        Raises
        ------
        MeasurementError
            The candidate computes NaN or infinities.
        """
        for count in self.counts:
            before = self._of_float(count, recipe, made.runtime)
            if before is None:
                return None
            share, least = _lost(before, self._of(count, recipe, made))
            if share <= NOTICED_LOSS:
                return None
            if least > 0:
                return self._located(recipe, made, before, share, count)
        return None

    def _located(self, recipe: Recipe, made: CandidateRef, before: Quality, share: float, count: int) -> QualityLoss:
        found = QualityLoss(
            metric=before.metric, higher_is_better=before.higher_is_better, share=share, samples=before.count
        )
        ranking = self._ranking(recipe)
        worst = ranking[: min(_NAMED, len(ranking) - 1)]  # one is left to quantize
        if not worst:
            return found
        kept, left = excluding(recipe, worst, len(worst)), None
        with suppress(NightquantError), reported_as("The layers cannot be kept float"):
            rebuilt = build_candidate(self.job, kept, made.runtime, self.source.workspace)
            left = _lost(before, self._of(count, kept, rebuilt))[0]
        return found.model_copy(
            update={
                "layers": tuple(layer.module for layer in worst),
                "ranks_for": "" if CONVERTED in made.shared else made.runtime,
                "exclude": kept.exclude,
                "share_left": left,
            }
        )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Sizes of the samples that the float model is fast enough for, none twice."""
        row_s = self._pace[0] / self.job.workload.benchmark.batch_size
        if _SAMPLES[0] * row_s > _MOST_S:
            self.notes.append(f"quality was not compared on a sample: the float model takes {row_s:.2g} s for a row")
        there = self.job.dataset.splits["test"]
        return tuple(dict.fromkeys(min(count, there) for count in _SAMPLES if count * row_s <= _MOST_S))

    @cached_property
    def _pace(self) -> tuple[float, int]:
        """Seconds of the shortest call, and how many threads are faster: for a small model on a busy host, one."""
        model, inputs = self.source.float_model(), tuple(self.source.example_inputs.values())
        found: dict[int, list[float]] = {1: [], torch.get_num_threads(): []}
        for threads, calls in found.items():
            with intra_op_threads(threads), torch.inference_mode():
                for _ in range(_CALLS):
                    began = time.perf_counter()
                    model(*inputs)
                    calls.append(time.perf_counter() - began)
        best = min(found, key=lambda threads: sum(found[threads]))
        return min(found[best]), best

    def _of_float(self, count: int, recipe: Recipe, runtime: str) -> Quality | None:
        """Evaluate the float model as a candidate is; None where a sample lacks what the metric needs."""
        key = count, RUNTIMES[runtime].couples_rows(recipe)
        if key not in self._float:
            self._float[key] = None
            try:
                with intra_op_threads(self._pace[1]):
                    self._float[key] = self._quality(self.source.float_model(), *key)
            except MeasurementError as error:  # auroc needs rows of both classes, for instance
                self.notes.append(f"quality was not compared on a sample: {error.message.rstrip('.')}")
        return self._float[key]

    def _of(self, count: int, recipe: Recipe, made: CandidateRef) -> Quality:
        threads = self._pace[1]
        with intra_op_threads(threads):
            opened = open_candidate(made, self.source.workspace, threads)
            with opened.scope():
                return self._quality(opened.call, count, RUNTIMES[made.runtime].couples_rows(recipe))

    @torch.inference_mode()
    def _quality(self, call: Call, count: int, apart: bool) -> Quality:
        job = replace(self.job, dataset=self.job.dataset.model_copy(update={"at_most": count}))
        return DOMAINS[job.workload.domain].evaluate(job, call, self.source.workspace, apart=apart)

    def _ranking(self, recipe: Recipe) -> tuple[LayerSensitivity, ...]:
        """Rank a recipe's layers; () if torch cannot convert the model."""
        if recipe.name not in self._rankings:
            self._rankings[recipe.name] = ()
            with suppress(NightquantError), reported_as("The layers cannot be ranked"):
                self._rankings[recipe.name] = sensitivity(self.job, recipe, self.source.workspace)
        return self._rankings[recipe.name]


def _lost(before: Quality, after: Quality) -> tuple[float, float]:
    """Return the loss and the smaller end of its 95% interval, as shares of the float model's quality; 0 if unknown."""
    samples = [quality.samples.get("quality") for quality in (before, after)]
    if not before.value or any(each is None or len(each) < 2 for each in samples):
        return 0.0, 0.0
    _, low, high = INTERVALS[before.contributions](*(each.numpy() for each in samples if each is not None))
    lost, least = (before.value - after.value, -high) if before.higher_is_better else (after.value - before.value, low)
    return lost / abs(before.value), least / abs(before.value)
