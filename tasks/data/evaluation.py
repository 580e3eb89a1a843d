"""The one evaluation loop: a model is called batch by batch, and its outputs are scored against the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from storage.errors import MeasurementError
from tasks.data import scores
from tasks.data.metrics import METRICS, Quality
from tasks.data.scoring import Kept, Score, Scored
from tasks.data.splits import Batch
from tasks.job import Progress, silent
from tasks.outputs import Call, tensors_of

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Named:
    """A score with what its number is called, and the number's direction."""

    name: str
    score: Score
    higher_is_better: bool


def named(metric: str) -> Named:
    """Look up a metric by its name."""
    found = METRICS[metric]
    score: Score = getattr(scores, found.score)
    return Named(metric, score, found.higher_is_better)


def called(
    call: Call, batches: Iterable[Batch], total: int, progress: Progress = silent, unit: str = "samples"
) -> Iterator[tuple[Batch, Tensor]]:
    """Call a model on batches; yield each with the model's first output.

    Raises
    ------
    MeasurementError
        An output holds NaN or infinities, or has another number of rows than the batch.
    QuantizationError
        The model returns no tensors.
    """
    done = 0
    for batch in batches:
        yield batch, checked_outputs(call(*batch.inputs), batch.size)
        done += batch.size
        progress(done, total, unit)


@torch.inference_mode()
def evaluate_batches(
    call: Call,
    batches: Iterable[Batch],
    metric: Named,
    *,
    total: int,
    apart: bool,
    also: Mapping[str, str] = _NOTHING,
    classes: int = 0,
    progress: Progress = silent,
    unit: str = "samples",
) -> Quality:
    """Call a model on all batches and score its first output.

    Parameters
    ----------
    apart
        Whether the batches are single rows, as a deployed model is called.
    also
        Further metrics of the same outputs, by the names that they are recorded under.
    classes
        The fewest logits that a row must have; 0 for any output.

    Raises
    ------
    MeasurementError
        Outputs are NaN or infinite, or of shapes that do not fit the targets; or the metric is not a number.
    """
    others = {name: named(other).score for name, other in also.items()}
    kept = {name: Kept() for name in (metric.name, *others)}
    for batch, outputs in called(call, batches, total, progress, unit):
        if classes:
            check_logits(outputs, classes)
        assert batch.target is not None
        for name, each in kept.items():
            each.batches.append(others.get(name, metric.score).take(outputs, batch.target))
            each.rows.extend(batch.rows or ())
    found = {name: others.get(name, metric.score).conclude(each) for name, each in kept.items()}
    return as_quality(metric, found, total, apart=apart)


@torch.inference_mode()
def outputs_in_order(
    call: Call, batches: Iterable[Batch], total: int, progress: Progress = silent, unit: str = "samples"
) -> Tensor:
    """Call a model on all batches; return its first outputs in the samples' order, [N, …]."""
    kept = Kept()
    for batch, outputs in called(call, batches, total, progress, unit):
        kept.batches.append({"output": outputs.clone()})  # a runtime may write its next outputs into the same memory
        kept.rows.extend(batch.rows or ())
    return kept.whole("output")


def as_quality(metric: Named, found: Mapping[str, Scored], count: int, *, apart: bool) -> Quality:
    """Make a `Quality` of scores by name, of which the `metric` decides.

    Raises
    ------
    MeasurementError
        The metric is not a number.
    """
    scored = found[metric.name]
    if not math.isfinite(scored.value):
        raise MeasurementError(
            f"the metric {metric.name} is {scored.value} on the test split.",
            hint="Look at the test split: auroc needs both classes, perplexity and wer need targets, and a metric of "
            "your own must return a number.",
        )
    return Quality(
        metric.name,
        scored.value,
        metric.higher_is_better,
        {name: each.value for name, each in found.items()},
        scored.samples,
        count,
        mode="rows apart" if apart else "plain",
        contributions=scored.contributions,
    )


def perplexity_beside(loss: float) -> dict[str, float]:
    """Return the perplexity of a loss in nats; nothing beyond the largest float, where it says no more."""
    perplexity = scores.perplexity(loss)
    return {"perplexity": perplexity} if math.isfinite(perplexity) else {}


def checked_outputs(result: object, rows: int) -> Tensor:
    """Return a model's first output for `rows` rows, which are its first axis.

    Raises
    ------
    MeasurementError
        It holds NaN or infinities, or has another number of rows.
    QuantizationError
        The model returns no tensors.
    """
    outputs = tensors_of(result)[0]
    if not outputs.dim() or len(outputs) != rows:
        raise MeasurementError(
            f"the model returns a tensor of shape {list(outputs.shape)} for {rows} rows.",
            hint="Its first output's first axis is that of the rows.",
        )
    if outputs.is_floating_point() and not outputs.isfinite().all():
        raise MeasurementError(
            "the model returns NaN or infinities.",
            hint="Exclude the module that overflows (`exclude`), or look at the checkpoint.",
        )
    return outputs


def check_logits(logits: Tensor, classes: int) -> None:
    """Refuse outputs that are not one row of logits for each row, for all classes, with a `MeasurementError`."""
    if logits.dim() != 2:
        raise MeasurementError(  # labels would broadcast over further axes
            f"the model returns logits of shape {list(logits.shape)}, not [rows, classes].",
            hint="Add a Flatten behind the model's last layer.",
        )
    if logits.shape[1] < classes:
        raise MeasurementError(
            f"the model returns {logits.shape[1]} logits for {classes} classes.",
            hint="Correct model.num_classes or the factory's arguments.",
        )
