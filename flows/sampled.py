"""Compare a trial's candidates with the float model on a sample of the test split, one candidate after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from flows.execution.workers import LostError
from flows.trial import CALIBRATION, EVALUATION_S, Run, counts_for, evaluated
from storage.errors import NightquantError, StoreError
from storage.results import Row
from tasks.job import Job
from tasks.refs import CandidateRef
from tasks.results import (
    NOTICED_LOSS,
    CandidatePreview,
    Comparison,
    Evaluation,
    Preview,
    QualityLoss,
    Reference,
)
from tasks.stages import build, compare, pace, worst_layers
from tasks.workload import Workload
from tasks.workload.gate import RULES, Gate, rows_to_decide
from tasks.workload.recipe import Recipe

_CONVERTED = "converted"  # kind of the artifact that torch's runtimes share


def compared(workload: Workload, found: Preview, run: Run) -> Iterator[Preview]:
    """Compare each comparable candidate with the float model; yield the preview after each comparison.

    `workload` may have another gate than the trial's.
    """
    if found.job is None or found.reference is None:
        return
    job, known = Job(workload, found.job.dataset, found.job.checkpoint), found.reference.evaluation
    comparing = _Comparing(job, found, run, {known.samples: known})
    candidates, problems = list(found.candidates), list(found.problems)
    for index, row in enumerate(found.candidates):
        if not row.uncompared:
            continue
        candidates[index] = comparing.compare(row)
        if candidates[index].obstacle:
            problems.append(f"{row.candidate}: {candidates[index].obstacle}")
        yield found.model_copy(update={"candidates": tuple(candidates), "problems": tuple(problems)})


@dataclass
class _Comparing:
    """Comparisons of candidates with the reference, on samples that both evaluate in the time allowed."""

    job: Job[Workload]
    found: Preview
    run: Run
    _float: dict[int, Evaluation]  # evaluations of the float model, keyed by number of samples
    _worst: dict[str, tuple[tuple[str, ...], Recipe] | None] = field(default_factory=dict)

    def compare(self, row: CandidatePreview) -> CandidatePreview:
        """Return the candidate's preview with the comparison and any loss, or the reason why neither is known."""
        reference, candidate = self.found.reference, row.built
        assert reference is not None
        assert candidate is not None
        try:
            row_s = self._pace(candidate)
            if not (counts := counts_for(self.job, max(row_s, reference.row_s))):
                slower = (
                    f", {row_s / reference.row_s:.3g} times as long as the float model"
                    if row_s > reference.row_s
                    else ""
                )
                return row.model_copy(update={"uncompared": f"it takes {row_s:.2g} s per row{slower}"})
            for count in counts:
                before, after = self._reference(count), evaluated(count, self.job, candidate, self.run)
                (comparison,) = self.run(compare, f"{self._label(candidate)}: comparison", before, [after])
                note = undecided(comparison, before, self.job.workload.gate, self.job.dataset.splits["test"])
                known = {"samples": before.samples, "comparison": comparison, "undecided": note}
                row = row.model_copy(update=known | {"uncompared": ""})
                share, least = _loss(comparison, reference)
                if share <= NOTICED_LOSS or least > 0:
                    break
        except StoreError:  # not the candidate's fault
            raise
        except LostError as error:
            return row.model_copy(update={"uncompared": error.message.rstrip(".")})
        except NightquantError as error:
            return CandidatePreview(candidate=row.candidate, obstacle=str(error))
        if share <= NOTICED_LOSS or least <= 0:
            return row
        loss = QualityLoss(
            metric=before.quality_metric,
            higher_is_better=before.higher_is_better,
            before=before.quality,
            after=after.quality,
            share=share,
            samples=before.samples,
        )
        return row.model_copy(update={"loss": self._located(loss, candidate, before)})

    def _located(self, loss: QualityLoss, candidate: CandidateRef, before: Evaluation) -> QualityLoss:
        """Add the layers that lose most, and the quality without them; leave out steps that fail."""
        if (worst := self._layers(candidate)) is None:
            return loss
        layers, reduced = worst
        ranks_for = "" if _CONVERTED in candidate.shared else candidate.runtime
        loss = loss.model_copy(update={"layers": layers, "ranks_for": ranks_for, "exclude": reduced.exclude})
        label, reference = f"{self._label(candidate)} without {', '.join(layers)}", self.found.reference
        assert reference is not None
        with suppress(NightquantError):
            rebuilt = self.run(build, f"{label}: build", self.job, reduced, candidate.runtime)
            after = evaluated(loss.samples, self.job, rebuilt, self.run)
            (comparison,) = self.run(compare, f"{label}: comparison", before, [after])
            share = _loss(comparison, reference)[0]
            refused = self._refusal(rebuilt)
            return loss.model_copy(update={"left": after.quality, "share_left": share, "refused": refused})
        return loss

    def _refusal(self, candidate: CandidateRef) -> str:
        """Return the reason that the gate's size rule refuses a candidate, or ``""``."""
        baseline = "/".join(self.job.workload.baseline())
        sizes = [row.built.size_bytes for row in self.found.candidates if row.built and row.candidate == baseline]
        least = self.job.workload.gate.min_size_ratio
        if not sizes or least is None or (ratio := sizes[0] / candidate.size_bytes) >= least:
            return ""
        return f"the candidate would be only {ratio:.3g} times as small, and the gate's min_size_ratio is {least:g}"

    def _layers(self, candidate: CandidateRef) -> tuple[tuple[str, ...], Recipe] | None:
        """Rank a recipe's layers by noise once for all runtimes; return None if torch cannot convert the model."""
        if candidate.recipe not in self._worst:
            recipe = self.job.workload.recipe_named(candidate.recipe).sketch(CALIBRATION)
            self._worst[candidate.recipe] = None
            with suppress(NightquantError):
                self._worst[candidate.recipe] = self.run(
                    worst_layers, f"{self.found.workload} · {candidate.recipe}: layers", self.job, recipe
                )
        return self._worst[candidate.recipe]

    def _reference(self, count: int) -> Evaluation:
        reference = self.found.reference
        assert reference is not None
        if count not in self._float:
            self._float[count] = evaluated(count, self.job, reference.candidate, self.run)
        return self._float[count]

    def _pace(self, candidate: CandidateRef) -> float:
        return self.run(pace, f"{self._label(candidate)}: pace", self.job, candidate, limit_s=EVALUATION_S)

    def _label(self, candidate: CandidateRef) -> str:
        return f"{self.found.workload} · {candidate.name}"


def undecided(comparison: Comparison, before: Evaluation, gate: Gate, available: int) -> str:
    """Return a note if a test split of `available` samples is too small to decide the gate's rule on quality."""
    rule, row = RULES["max_quality_drop"], _as_row(comparison, before)
    if (bound := rule.bound(gate)) is None:
        return ""
    drop = rule.see(gate, row)
    low, high = drop.ends
    if drop.value is None or low is None or high is None or rule.check(gate, row, bound).outcome != "held":
        return ""
    needed = rows_to_decide(drop.value, low, high, bound, before.samples)
    if needed is not None and needed <= available:
        return ""
    many = f"about {needed:,} test samples" if needed else "more test samples than anyone has"
    return f"{many} would decide whether the loss is within max_quality_drop = {bound:g}; there are {available:,}"


def _as_row(comparison: Comparison, before: Evaluation) -> Row:
    """Return the columns of the ``measurements`` table that the gate's rule on quality reads."""
    return comparison.model_dump() | {
        "quality_metric": before.quality_metric,
        "higher_is_better": before.higher_is_better,
        "baseline_quality": before.quality,
        "evaluation_samples": before.samples,
    }


def _loss(comparison: Comparison, reference: Reference) -> tuple[float, float]:
    """Return a loss and the lower end of its 95% interval, as fractions of `Reference.unit`; 0 if it is unknown."""
    low, high = comparison.quality_difference_low, comparison.quality_difference_high
    if low is None or high is None or not reference.unit:
        return 0.0, 0.0
    sign, better = (-1, high) if reference.evaluation.higher_is_better else (1, low)
    return sign * comparison.quality_difference / reference.unit, sign * better / reference.unit
