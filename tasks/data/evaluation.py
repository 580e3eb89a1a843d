"""The one evaluation loop: a model is called batch by batch, and its outputs are scored against the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.errors import MeasurementError
from tasks.data.metrics import METRICS, perplexity
from tasks.data.samples import Batch
from tasks.data.scores import Kept, Score, Scored
from tasks.job import Progress, silent
from tasks.outputs import Call, tensors_of
from tasks.results import Contributions


@dataclass(frozen=True)
class Quality:
    """What an evaluation of `count` samples found: what the gate looks at, and every number that was computed, by name.

    ``samples`` are per-sample results for paired comparison: ``quality``, float32 [N], each sample's contribution (its
    mean is the value), and ``prediction``, int64 [N]; either may be missing. ``contributions`` says what the
    former are, which decides how a difference's interval is computed (``resampled``: no contributions, but the quality
    itself on R resamples, float64 [R]); ``mode`` how it was computed, where there are several ways.
    """

    metric: str
    value: float
    higher_is_better: bool
    metrics: dict[str, float]
    samples: dict[str, Tensor]
    count: int
    mode: str = "plain"
    contributions: Contributions = "independent"


def _called(
    call: Call, batches: Iterable[Batch], total: int, progress: Progress, unit: str
) -> Iterator[tuple[Batch, Tensor]]:
    done = 0
    for batch in batches:
        yield batch, checked_outputs(call(*batch.inputs), batch.size)
        done += batch.size
        progress(done, total, unit)


@torch.inference_mode()
def evaluate_batches(
    call: Call,
    batches: Iterable[Batch],
    metric: Score,
    *,
    total: int,
    apart: bool,
    also: Mapping[str, str] | None = None,
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
    scores = {metric.name: metric} | {name: METRICS[other] for name, other in (also or {}).items()}
    kept = {name: Kept() for name in scores}
    for batch, outputs in _called(call, batches, total, progress, unit):
        if classes:
            _check_logits(outputs, classes)
        assert batch.target is not None
        for name, score in scores.items():
            kept[name].batches.append(score.take(outputs, batch.target))
            kept[name].rows.extend(batch.rows or ())
    found = {name: score.conclude(kept[name]) for name, score in scores.items()}
    return as_quality(metric, found, total, apart=apart)


@torch.inference_mode()
def outputs_in_order(
    call: Call, batches: Iterable[Batch], total: int, progress: Progress = silent, unit: str = "samples"
) -> Tensor:
    """Call a model on all batches; return its first outputs in the samples' order, [N, …]."""
    kept = Kept()
    for batch, outputs in _called(call, batches, total, progress, unit):
        kept.batches.append({"output": outputs.clone()})  # a runtime may write its next outputs into the same memory
        kept.rows.extend(batch.rows or ())
    return kept.whole("output")


def as_quality(metric: Score, found: Mapping[str, Scored], count: int, *, apart: bool) -> Quality:
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
    found = perplexity(loss)
    return {"perplexity": found} if math.isfinite(found) else {}


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


def _check_logits(logits: Tensor, classes: int) -> None:
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
