"""The evaluation loop: call a model batch by batch, and score the outputs against the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.errors import MeasurementError
from tasks.data.metrics import METRICS, perplexity
from tasks.data.outputs import Call, tensors_of
from tasks.data.samples import Batch, Description, listed
from tasks.data.scores import BatchResults, Score, Scored
from tasks.values.job import Progress, silent
from tasks.values.results import Contributions

# Metrics of `tasks.data.metrics.METRICS` that compare outputs with class numbers.
OF_CLASSES = frozenset({"accuracy", "top5", "f1-macro", "auroc", "loss", "perplexity"})


@dataclass(frozen=True)
class Quality:
    """The result of evaluating `count` samples: the mean of the tensor ``quality`` in ``samples``, or resampled."""

    metric: str  # the metric that the gate checks
    value: float
    higher_is_better: bool
    metrics: dict[str, float]
    samples: dict[str, Tensor]
    count: int
    mode: str = "plain"  # the evaluation procedure, such as ``rows apart``
    contributions: Contributions = "independent"
    resample: Callable[[], Tensor] | None = None
    constant: float | None = None  # the quality of the best constant answer, if it is known

    def paired(self) -> dict[str, Tensor]:
        """Return `samples` with the numbers that paired comparisons need; this can be slow for resampled metrics."""
        return self.samples | ({"quality": self.resample()} if self.resample else {})


def _with_outputs(
    call: Call, batches: Iterable[Batch], total: int, progress: Progress
) -> Iterator[tuple[Batch, Tensor]]:
    done = 0
    for batch in batches:
        yield batch, checked_outputs(call(*batch.inputs), batch.size)
        done += batch.size
        progress(done, total, "samples")


@torch.inference_mode()
def evaluate_batches(
    call: Call,
    batches: Iterable[Batch],
    metric: Score,
    *,
    total: int,
    singly: bool,
    also: Mapping[str, str] | None = None,
    classes: int = 0,
    progress: Progress = silent,
) -> Quality:
    """Score a model's first output; `also` names additional metrics, and `classes` is the minimum number of logits."""
    scores = {metric.name: metric} | {name: METRICS[other] for name, other in (also or {}).items()}
    results = {name: BatchResults() for name in scores}
    targets: list[Tensor] = []
    width = 0
    for batch, outputs in _with_outputs(call, batches, total, progress):
        if classes and (outputs.dim() != 2 or outputs.shape[1] < classes):  # further axes would broadcast the labels
            raise MeasurementError(
                f"the model returns logits of shape {list(outputs.shape)}, but the data set has {classes} classes.",
                hint="Return logits of shape [rows, classes].",
            )
        assert batch.target is not None
        targets.append(batch.target)
        width = outputs.shape[1] if outputs.dim() > 1 else 1
        for name, score in scores.items():
            results[name].batches.append(score.take(outputs, batch.target))
            results[name].rows.extend(batch.rows or ())
    scored = {name: score.conclude(results[name]) for name, score in scores.items()}
    constant = metric.constant(targets, width) if metric.constant else None
    return as_quality(metric, scored, total, singly=singly, constant=constant)


@torch.inference_mode()
def outputs_in_order(call: Call, batches: Iterable[Batch], total: int, progress: Progress) -> Tensor:
    """Call a model on all batches; return the first output for every sample, [N, …], in sample order."""
    results = BatchResults()
    for batch, outputs in _with_outputs(call, batches, total, progress):
        results.batches.append({"output": outputs.clone()})  # a runtime may reuse its output buffers
        results.rows.extend(batch.rows or ())
    return results.complete("output")


def as_quality(
    metric: Score, scored: Mapping[str, Scored], count: int, *, singly: bool, constant: float | None = None
) -> Quality:
    """Create a `Quality` from metric names and results; the gate checks `metric`, which must be finite."""
    main = scored[metric.name]
    if not math.isfinite(main.value):
        raise MeasurementError(
            f"the metric {metric.name} is {main.value}, not a finite number.",
            hint="Check the samples: auroc needs both classes, for example. A metric of your own must return a number.",
        )
    return Quality(
        metric.name,
        main.value,
        metric.higher_is_better,
        {name: result.value for name, result in scored.items()},
        main.samples,
        count,
        mode="rows apart" if singly else "plain",
        contributions=main.contributions,
        resample=main.resample,
        constant=constant,
    )


def perplexity_metric(loss: float) -> dict[str, float]:
    """Return the ``perplexity`` metric for a loss in nats, or ``{}`` if the perplexity is infinite."""
    value = perplexity(loss)
    return {"perplexity": value} if math.isfinite(value) else {}


def checked_outputs(result: object, rows: int) -> Tensor:
    """Return a model's first output; refuse non-finite values, and a wrong number of rows."""
    outputs = tensors_of(result)[0]
    if not outputs.dim() or len(outputs) != rows:
        raise MeasurementError(
            f"the model's first output has the shape {list(outputs.shape)} for {rows} input rows.",
            hint="Change the model so that its first output has one row for each input row.",
        )
    if outputs.is_floating_point() and not outputs.isfinite().all():
        raise MeasurementError("the model returns NaN or infinities.", hint="Check the float model's outputs.")
    return outputs


def check_labels(outputs: Tensor, data: Description, *, named: bool) -> None:
    """Compare the data's classes with a model's scores, [B, K, …], or a binary classifier's, [B] or [B, 1]."""
    several = outputs.dim() > 1 and outputs.shape[1] > 1
    count = outputs.shape[1] if several else 2
    returned = f"the model returns {count} logits per row" if several else "the model returns one score per row"
    if named and data.classes and len(data.classes) != count:
        raise MeasurementError(
            f"{returned}, but the data has {len(data.classes)} classes: {listed(data.classes)}.",
            hint=f"Set data.classes to the names of all {count} classes, in the order of the model's outputs.",
        )
    lowest, highest = data.label_range or (0, 0)
    if lowest < 0 or highest >= count:
        raise MeasurementError(
            f"{returned}, for the class numbers 0 to {count - 1}, but the labels range from {lowest} to {highest}.",
            hint=f"Number the classes from 0 to {count - 1}. For a table, you can instead set data.classes to the "
            "labels in the order of the outputs. If the targets are not classes, choose another evaluate.metric.",
        )
