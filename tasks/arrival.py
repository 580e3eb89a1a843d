"""Compare candidates with the float model on a sample of the test split, before a run measures the candidates."""

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
_SAMPLES = (256, 1024)  # use the larger sample if a loss on the smaller sample may be due to chance
_NAMED = 3
_MOST_S = 60.0  # maximum estimated time, in seconds, to evaluate the float model on a sample
_CALLS = 5


@dataclass
class Arrival:
    """Comparison of candidates with the float model on the same test samples; `notes` explains skipped comparisons."""

    job: Job[Workload]
    source: ModelSource
    notes: list[str] = field(default_factory=list)
    _float: dict[tuple[int, bool], Quality | None] = field(default_factory=dict)
    _rankings: dict[str, tuple[LayerSensitivity, ...]] = field(default_factory=dict)

    def sketch(self, recipe: Recipe) -> Recipe | None:
        """Return a variant of the recipe that is quick to build, or None if a comparison would be pointless or slow."""
        is_plain = METHODS[recipe.method].quantizes and recipe.sketch().method == recipe.method
        return recipe.sketch(_CALIBRATION) if is_plain and self._is_real and self.counts else None

    @property
    def _is_real(self) -> bool:
        return self.job.workload.checkpoint.kind not in ("train", "seeded")

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if the float model does not beat a constant answer, even on the larger sample."""
        warning: tuple[str, ...] = ()
        for count in self.counts if self._is_real else ():
            quality = self._float_quality(count, apart=False)
            if quality is None or quality.beats_constant:
                return ()
            warning = (
                f"the float model's {quality.metric} is {quality.value:.4g} on {quality.count:,} samples, no better "
                f"than the best constant answer ({quality.constant:.4g}), so a run holds every candidate; check the "
                "labels, the preprocessing and the weights",
            )
        return warning

    def loss(self, recipe: Recipe, candidate: CandidateRef) -> QualityLoss | None:
        """Measure the quality loss of a recipe's candidate; return None if the loss is small or may be due to chance.

        Raises
        ------
        MeasurementError
            The candidate's outputs contain NaN or infinities.
        """
        for count in self.counts:
            before = self._float_quality(count, apart=RUNTIMES[candidate.runtime].couples_rows(recipe))
            if before is None:
                return None
            share, least = _loss_of(before, self._candidate_quality(count, recipe, candidate))
            if share <= NOTICED_LOSS:
                return None
            if least > 0:
                return self._locate(recipe, candidate, before, share, count)
        return None

    def _locate(
        self, recipe: Recipe, candidate: CandidateRef, before: Quality, share: float, count: int
    ) -> QualityLoss:
        loss = QualityLoss(
            metric=before.metric, higher_is_better=before.higher_is_better, share=share, samples=before.count
        )
        ranking = self._ranking(recipe)
        worst = ranking[: min(_NAMED, len(ranking) - 1)]  # at least one layer must stay quantized
        if not worst:
            return loss
        reduced, left = excluding(recipe, worst, len(worst)), None
        with suppress(NightquantError), reported_as("The layers cannot be kept float"):
            rebuilt = build_candidate(self.job, reduced, candidate.runtime, self.source.workspace)
            left = _loss_of(before, self._candidate_quality(count, reduced, rebuilt))[0]
        return loss.model_copy(
            update={
                "layers": tuple(layer.module for layer in worst),
                "ranks_for": "" if CONVERTED in candidate.shared else candidate.runtime,
                "exclude": reduced.exclude,
                "share_left": left,
            }
        )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Distinct sample sizes for which evaluating the float model takes at most `_MOST_S` seconds."""
        row_s = self._pace[0] / self.job.workload.benchmark.batch_size
        if _SAMPLES[0] * row_s > _MOST_S:
            self.notes.append(f"quality was not compared on a sample: the float model takes {row_s:.2g} s per row")
        available = self.job.dataset.splits["test"]
        return tuple(dict.fromkeys(min(count, available) for count in _SAMPLES if count * row_s <= _MOST_S))

    @cached_property
    def _pace(self) -> tuple[float, int]:
        """Duration of the float model's shortest call, in seconds, and the faster thread count.

        The thread count is 1 or torch's default.
        """
        model, inputs = self.source.float_model(), tuple(self.source.example_inputs.values())
        durations: dict[int, list[float]] = {1: [], torch.get_num_threads(): []}
        for threads, calls in durations.items():
            with intra_op_threads(threads), torch.inference_mode():
                for _ in range(_CALLS):
                    began = time.perf_counter()
                    model(*inputs)
                    calls.append(time.perf_counter() - began)
        best = min(durations, key=lambda threads: sum(durations[threads]))
        return min(durations[best]), best

    def _float_quality(self, count: int, *, apart: bool) -> Quality | None:
        """Measure the float model's quality; return None if the metric cannot be computed on the sample."""
        key = count, apart
        if key not in self._float:
            self._float[key] = None
            try:
                with intra_op_threads(self._pace[1]):
                    self._float[key] = self._quality(self.source.float_model(), *key)
            except MeasurementError as error:  # for example, the sample lacks a class that ``auroc`` needs
                self.notes.append(f"quality was not compared on a sample: {error.message.rstrip('.')}")
        return self._float[key]

    def _candidate_quality(self, count: int, recipe: Recipe, candidate: CandidateRef) -> Quality:
        threads = self._pace[1]
        with intra_op_threads(threads):
            opened = open_candidate(candidate, self.source.workspace, threads)
            with opened.scope():
                return self._quality(opened.call, count, RUNTIMES[candidate.runtime].couples_rows(recipe))

    @torch.inference_mode()
    def _quality(self, call: Call, count: int, apart: bool) -> Quality:
        job = replace(self.job, dataset=self.job.dataset.model_copy(update={"at_most": count}))
        return DOMAINS[job.workload.domain].evaluate(job, call, self.source.workspace, apart=apart)

    def _ranking(self, recipe: Recipe) -> tuple[LayerSensitivity, ...]:
        """Rank a recipe's layers by loss; return ``()`` if torch cannot convert the model."""
        if recipe.name not in self._rankings:
            self._rankings[recipe.name] = ()
            with suppress(NightquantError), reported_as("The layers cannot be ranked"):
                self._rankings[recipe.name] = sensitivity(self.job, recipe, self.source.workspace)
        return self._rankings[recipe.name]


def _loss_of(before: Quality, after: Quality) -> tuple[float, float]:
    """Return a loss and the lower bound of its 95% interval, as fractions of the float model's quality.

    Both values are 0 if the interval is unknown.
    """
    samples = [quality.paired().get("quality") for quality in (before, after)]
    if not before.value or any(values is None or len(values) < 2 for values in samples):
        return 0.0, 0.0
    _, low, high = INTERVALS[before.contributions](*(values.numpy() for values in samples if values is not None))
    lost, least = (before.value - after.value, -high) if before.higher_is_better else (after.value - before.value, low)
    return lost / abs(before.value), least / abs(before.value)
