"""The evaluation loop: call a model batch by batch, and score its outputs against the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.errors import MeasurementError
from tasks.data.metrics import METRICS, perplexity
from tasks.data.samples import Batch
from tasks.data.scores import BatchResults, Score, Scored
from tasks.job import Progress, silent
from tasks.outputs import Call, tensors_of
from tasks.results import Contributions


@dataclass(frozen=True)
class Quality:
    """The result of an evaluation of `count` samples: the gate's metric, and all computed metrics by name.

    ``samples`` are per-sample results for paired comparison, and either may be missing. ``quality``, float32 [N], is
    each sample's contribution, and its mean is the value; ``prediction`` is int64 [N]. ``contributions`` is the kind of
    ``quality``, which determines how the interval of a difference is computed. With ``resampled``, ``quality`` is the
    metric of R resamples, float64 [R]. ``mode`` names the procedure, such as ``rows apart``.
    """

    metric: str
    value: float
    higher_is_better: bool
    metrics: dict[str, float]
    samples: dict[str, Tensor]
    count: int
    mode: str = "plain"
    contributions: Contributions = "independent"


def _with_outputs(
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
        Whether each batch is a single row.
    also
        Names of further metrics for the same outputs, by the names of their results.
    classes
        Minimum number of logits in a row; 0 allows any output.

    Raises
    ------
    MeasurementError
        The outputs are not finite or do not fit the targets, or the metric is not finite.
    """
    scores = {metric.name: metric} | {name: METRICS[other] for name, other in (also or {}).items()}
    results = {name: BatchResults() for name in scores}
    for batch, outputs in _with_outputs(call, batches, total, progress, unit):
        if classes:
            _check_logits(outputs, classes)
        assert batch.target is not None
        for name, score in scores.items():
            results[name].batches.append(score.take(outputs, batch.target))
            results[name].rows.extend(batch.rows or ())
    scored = {name: score.conclude(results[name]) for name, score in scores.items()}
    return as_quality(metric, scored, total, apart=apart)


@torch.inference_mode()
def outputs_in_order(
    call: Call, batches: Iterable[Batch], total: int, progress: Progress = silent, unit: str = "samples"
) -> Tensor:
    """Call a model on all batches; return its first outputs in the order of the samples, [N, …]."""
    results = BatchResults()
    for batch, outputs in _with_outputs(call, batches, total, progress, unit):
        results.batches.append({"output": outputs.clone()})  # a runtime may reuse the memory of its outputs
        results.rows.extend(batch.rows or ())
    return results.complete("output")


def as_quality(metric: Score, scored: Mapping[str, Scored], count: int, *, apart: bool) -> Quality:
    """Make a `Quality` from scored metrics by name; `metric` is the gate's metric.

    Raises
    ------
    MeasurementError
        The metric is not finite.
    """
    main = scored[metric.name]
    if not math.isfinite(main.value):
        raise MeasurementError(
            f"the metric {metric.name} is {main.value} on the test split.",
            hint="Check the test split: auroc needs both classes, perplexity and wer need targets, and your own metric "
            "must return a number.",
        )
    return Quality(
        metric.name,
        main.value,
        metric.higher_is_better,
        {name: result.value for name, result in scored.items()},
        main.samples,
        count,
        mode="rows apart" if apart else "plain",
        contributions=main.contributions,
    )


def perplexity_metric(loss: float) -> dict[str, float]:
    """Return the metric ``perplexity`` for a loss in nats, or {} if the perplexity is infinite."""
    value = perplexity(loss)
    return {"perplexity": value} if math.isfinite(value) else {}


def checked_outputs(result: object, rows: int) -> Tensor:
    """Return a model's first output after checking its values and its number of rows.

    Raises
    ------
    MeasurementError
        The output contains NaN or infinities, or its first axis does not have `rows` rows.
    QuantizationError
        The model returns no tensors.
    """
    outputs = tensors_of(result)[0]
    if not outputs.dim() or len(outputs) != rows:
        raise MeasurementError(
            f"the model returns a tensor of shape {list(outputs.shape)} for {rows} rows.",
            hint="The first axis of the first output must be the axis of the rows.",
        )
    if outputs.is_floating_point() and not outputs.isfinite().all():
        raise MeasurementError(
            "the model returns NaN or infinities.",
            hint="Exclude the module that overflows (`exclude`), or check the checkpoint.",
        )
    return outputs


def _check_logits(logits: Tensor, classes: int) -> None:
    if logits.dim() != 2:
        raise MeasurementError(  # labels would broadcast over further axes
            f"the model returns logits of shape {list(logits.shape)}, not [rows, classes].",
            hint="Add a Flatten after the model's last layer.",
        )
    if logits.shape[1] < classes:
        raise MeasurementError(
            f"the model returns {logits.shape[1]} logits for {classes} classes.",
            hint="Correct model.num_classes or the factory's arguments.",
        )
