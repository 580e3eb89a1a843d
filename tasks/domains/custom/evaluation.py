"""Quality of a model of the user's own on the test split, by a metric's name or by the user's own function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from storage.errors import MeasurementError
from tasks.domains import metrics
from tasks.domains.base import Quality
from tasks.domains.custom.names import DIRECTIONS
from tasks.domains.custom.samples import load_test
from tasks.domains.custom.sections import CustomWorkload, Evaluate
from tasks.domains.metrics import METRICS, RatioMetric, RowMetric, SetMetric, checked_outputs, resampled
from tasks.job import Job, Workspace
from tasks.outputs import Call
from tasks.results import Contributions
from tasks.user_code import in_its_own_words, opened


@dataclass
class _Found:
    """What the batches gave: numbers of rows, or outputs and targets that are looked at together."""

    rows: list[Tensor] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    predictions: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def evaluate_custom(job: Job[CustomWorkload], call: Call, workspace: Workspace, *, apart: bool) -> Quality:
    """Call a model on the test split and compute ``evaluate.metric`` of its first output.

    Raises
    ------
    MeasurementError
        Outputs are NaN or infinite, or of shapes that do not fit the targets.
    ConfigurationError
        The user's metric fails, or returns something else than a number or one for each row.
    """
    settings = job.workload.evaluate
    split = load_test(job.dataset, workspace.store, apart=apart)
    found, done = _Found(), 0
    with torch.inference_mode():
        for batch in split.in_batches(1 if apart else settings.batch_size):
            outputs = checked_outputs(call(*batch.inputs.values()), len(batch))
            _take(found, outputs, batch.target, settings)
            done += len(batch)
            workspace.progress(done, len(split), "samples")
        value, samples = _conclude(found, settings)
    if not math.isfinite(value):
        raise MeasurementError(
            f"the metric {settings.metric} is {value} on the test split.",
            hint="Look at the test split: auroc needs both classes, perplexity and wer need targets, and a metric of "
            "your own must return a number.",
        )
    name = metric_name(settings)
    numbers = {name: value}
    if settings.metric == "loss":
        numbers["perplexity"] = metrics.perplexity(value)
    return Quality(
        name,
        value,
        DIRECTIONS[settings.metric] if settings.higher_is_better is None else settings.higher_is_better,
        numbers,
        samples,
        len(split),
        mode="rows apart" if apart else "plain",
        contributions="resampled" if not found.rows else _contributions(settings),
    )


def check_model(job: Job[CustomWorkload], model: nn.Module, workspace: Workspace) -> None:
    """Call the float model on its first test rows and compute the metric of them.

    Raises
    ------
    ConfigurationError
        The model fails on its data, or the metric fails.
    MeasurementError, QuantizationError
        The model returns what cannot be evaluated.
    """
    settings = job.workload.evaluate
    batch = next(load_test(job.dataset, workspace.store, apart=False).in_batches(settings.batch_size))
    shapes = ", ".join(
        f"{name} {str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for name, each in batch.inputs.items()
    )
    what = f'model.factory "{job.workload.model.factory}"'
    with torch.inference_mode():
        with in_its_own_words(f"{what}: forward failed on {shapes}", "Fix forward, or what the data gives it."):
            result = model(*batch.inputs.values())
        try:
            _take(_Found(), checked_outputs(result, len(batch)), batch.target, settings)
        except MeasurementError as error:
            raise MeasurementError(f"{what}: {error.message}", hint=error.hint) from error


def metric_name(settings: Evaluate) -> str:
    """The metric's name; a callable's own, with its unit."""
    name = settings.metric.rpartition(":")[2]
    return f"{name} ({settings.unit})" if settings.unit else name


def _take(found: _Found, outputs: Tensor, target: Tensor, settings: Evaluate) -> None:
    """Note what a batch gave."""
    match METRICS.get(settings.metric):
        case RowMetric() as metric:
            found.rows.append(metric.rows(outputs, target))
            if metric.prediction:
                found.predictions.append(metric.prediction(outputs))
            elif settings.metric != "loss":
                found.outputs.append(outputs.float())
            return
        case SetMetric() as metric:
            kept = metric.reduce(outputs)
            metrics.need_classes(kept, target)
        case RatioMetric() as metric:
            kept = metric.parts(outputs, target)
        case None:
            kept = outputs
    found.kept.append(kept)
    found.targets.append(target)


def checked_number(settings: Evaluate, given: object, rows: int) -> Tensor:
    """What the user's metric says of `rows` rows: float64, a number or one for each.

    Raises
    ------
    MeasurementError
        It is something else.
    """
    number = torch.as_tensor(given, dtype=torch.float64) if isinstance(given, int | float | Tensor) else None
    if number is None or tuple(number.shape) not in ((), (rows,)):
        shown = f"a tensor of shape {list(number.shape)}" if number is not None else f"a {type(given).__name__}"
        raise MeasurementError(
            f'evaluate.metric "{settings.metric}" returned {shown} for {rows} rows.',
            hint="It must return a number for all rows together, or a tensor with one for each.",
        )
    return number


def _conclude(found: _Found, settings: Evaluate) -> tuple[float, dict[str, Tensor]]:
    """The quality, and what comparisons need of it."""
    metric = METRICS.get(settings.metric)
    if metric is None:
        return _by_own_metric(found, settings)
    if isinstance(metric, RatioMetric):
        parts = torch.cat(found.kept).numpy()
        return metric.of(parts), {"quality": resampled(lambda rows: metric.of(parts[rows]), len(parts))}
    if isinstance(metric, SetMetric):
        kept, target = torch.cat(found.kept), torch.cat(found.targets).numpy()

        def of_rows(rows: NDArray[np.int64]) -> float:
            return metric.value(kept.numpy(), target, np.bincount(rows, minlength=len(target)))

        name = "prediction" if metric.prediction else "score"
        return of_rows(np.arange(len(target))), {name: kept, "quality": resampled(of_rows, len(target))}
    rows = torch.cat(found.rows)
    samples = {"quality": rows.float()}
    if found.predictions:
        samples["prediction"] = torch.cat(found.predictions)
    if _are_alike(found.outputs):
        samples["output"] = torch.cat(found.outputs)
    return rows.mean().item(), samples


def _by_own_metric(found: _Found, settings: Evaluate) -> tuple[float, dict[str, Tensor]]:
    """Ask the user's metric: of all rows together, or of each batch where batches differ in shape."""
    with opened("evaluate.metric", settings.metric, settings.folder) as own:

        def said(outputs: Tensor, target: Tensor) -> Tensor:
            return checked_number(settings, own(outputs, target), len(target))

        if not _are_alike(found.kept) or not _are_alike(found.targets):
            parts = [said(*pair) for pair in zip(found.kept, found.targets, strict=True)]
            if any(not part.dim() for part in parts):
                raise MeasurementError(
                    f"{settings.metric} looks at all rows together, and batches have outputs of different shapes.",
                    hint="Let the metric return one number for each row.",
                )
            found.rows.extend(parts)
            return torch.cat(parts).mean().item(), {"quality": torch.cat(parts).float()}
        kept, target = torch.cat(found.kept), torch.cat(found.targets)
        given = said(kept, target)
        samples = {"output": kept.float()}
        if given.dim():
            found.rows.append(given)
            return given.mean().item(), samples | {"quality": given.float()}

        def of_rows(rows: NDArray[np.int64]) -> float:
            return said(kept[torch.from_numpy(rows)], target[torch.from_numpy(rows)]).item()

        return given.item(), samples | {"quality": resampled(of_rows, len(kept))}


def _are_alike(tensors: Sequence[Tensor]) -> bool:
    return len({tuple(each.shape[1:]) for each in tensors}) == 1


def _contributions(settings: Evaluate) -> Contributions:
    metric = METRICS.get(settings.metric)
    return metric.contributions if isinstance(metric, RowMetric) else "independent"
