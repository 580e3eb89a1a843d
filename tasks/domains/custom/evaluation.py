"""Quality of a model of the user's own on the test split, by a metric's name or by the user's own function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from storage.errors import MeasurementError
from tasks.data.evaluation import Named, checked_outputs, evaluate_batches, named, perplexity_beside
from tasks.data.metrics import METRICS, Quality
from tasks.data.scoring import Kept, Score, Scored, resampled
from tasks.data.splits import load_test
from tasks.user_code import in_its_own_words, opened

if TYPE_CHECKING:
    from tasks.domains.custom import CustomWorkload, Evaluate
    from tasks.job import Job, Workspace
    from tasks.outputs import Call


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
    quality = evaluate_batches(
        call,
        split.batches(1 if apart else settings.batch_size),
        metric_of(settings),
        total=len(split),
        apart=apart,
        progress=workspace.progress,
    )
    if settings.metric == "loss":
        return replace(quality, metrics=quality.metrics | perplexity_beside(quality.value))
    return quality


def check_model(job: Job[CustomWorkload], model: nn.Module, workspace: Workspace) -> None:
    """Call the float model on its first test rows and compute the metric of them.

    Raises
    ------
    ConfigurationError
        The model fails on its data, or the metric fails.
    MeasurementError, QuantizationError
        The model returns what cannot be evaluated.
    """
    settings, split = job.workload.evaluate, load_test(job.dataset, workspace.store, apart=False)
    batch = next(split.batches(settings.batch_size))
    shapes = ", ".join(
        f"{name} {str(each.dtype).removeprefix('torch.')} {list(each.shape)}"
        for name, each in zip(split.description.inputs, batch.inputs, strict=True)
    )
    what = f'model.factory "{job.workload.model.factory}"'
    with torch.inference_mode():
        with in_its_own_words(f"{what}: forward failed on {shapes}", "Fix forward, or what the data gives it."):
            result = model(*batch.inputs)
        try:
            assert batch.target is not None
            metric_of(settings).score.take(checked_outputs(result, batch.size), batch.target)
        except MeasurementError as error:
            raise MeasurementError(f"{what}: {error.message}", hint=error.hint) from error


def metric_of(settings: Evaluate) -> Named:
    """Look up a metric, or make one of the user's own callable, named with its unit."""
    if settings.metric in METRICS:
        return named(settings.metric)
    name = settings.metric.rpartition(":")[2]
    unit = f" ({settings.unit})" if settings.unit else ""
    return Named(f"{name}{unit}", OwnScore(settings), bool(settings.higher_is_better))


@dataclass(frozen=True)
class OwnScore(Score):
    """The user's metric: of all rows together, or of each batch where batches differ in shape."""

    settings: Evaluate

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Keep outputs and targets, which the metric looks at together."""
        return {"output": outputs.clone(), "target": target}

    def conclude(self, kept: Kept) -> Scored:
        """Ask the metric; where it gives one number for all rows, ask it of resamples as well."""
        settings = self.settings
        with opened("evaluate.metric", settings.metric, settings.folder) as own:

            def said(outputs: Tensor, target: Tensor) -> Tensor:
                return checked_number(settings, own(outputs, target), len(target))

            outputs, target = kept.joined("output"), kept.joined("target")
            if outputs is None or target is None:
                parts = [said(batch["output"], batch["target"]) for batch in kept.batches]
                if any(not part.dim() for part in parts):
                    raise MeasurementError(
                        f"{settings.metric} looks at all rows together, and batches have outputs of different shapes.",
                        hint="Let the metric return one number for each row.",
                    )
                rows = torch.cat(parts)
                return Scored(rows.mean().item(), {"quality": rows.float()}, "independent")
            given, samples = said(outputs, target), {"output": outputs.float()}
            if given.dim():
                return Scored(given.mean().item(), samples | {"quality": given.float()}, "independent")

            def of_rows(rows: NDArray[np.int64]) -> float:
                return said(outputs[torch.from_numpy(rows)], target[torch.from_numpy(rows)]).item()

            return Scored(given.item(), samples | {"quality": resampled(of_rows, len(outputs))})


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
