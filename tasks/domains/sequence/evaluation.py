"""How far a quantized model's output is from the float model's on one input, as PyTorch's recipe reports it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from storage.errors import MeasurementError
from tasks.evaluate.outputs import flat_outputs, write_outputs
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef, Evaluation, QuantizedRef

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.workload.recipe import Runtime
    from tasks.workload.workload import Workload


def evaluate_sequence(
    workload: Workload,
    quantized: QuantizedRef,
    runtime: Runtime,
    dataset: DatasetRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> Evaluation:
    """Mean absolute output, mean absolute difference from float, and that difference as a percentage.

    Raises
    ------
    MeasurementError
        The output holds NaN or infinities.
    """
    from tasks.checkpoint import load_state, obtain
    from tasks.models import build, example_inputs
    from tasks.quantize import load

    reference = build(workload.model, dataset)
    reference.load_state_dict(load_state(obtain(workload, dataset, store), store))
    candidate = load(store.path(quantized.kind, quantized.digest), runtime)
    inputs = example_inputs(workload, dataset, store)
    expected = flat_outputs(reference, inputs)[0]
    outputs = flat_outputs(candidate, inputs)
    metrics = differences(expected, outputs[0])
    if not all(map(math.isfinite, metrics.values())):
        raise MeasurementError(
            f'Recipe "{quantized.recipe}" ({runtime}) of workload "{workload.name}" gives outputs that are no numbers.',
            hint="Exclude the module that overflows (`exclude`) or use another dtype.",
        )
    progress(1, 1, "sequence")
    samples = {"difference": (expected - outputs[0]).abs().flatten().float()}
    return Evaluation(
        recipe=quantized.recipe,
        runtime=runtime,
        quality_metric="difference_percent",
        quality=metrics["difference_percent"],
        higher_is_better=False,
        metrics=metrics,
        mode="plain",
        samples=samples["difference"].numel(),
        outputs=write_outputs(quantized, runtime, inputs, outputs, samples, store),
    )


def differences(expected: Tensor, actual: Tensor) -> dict[str, float]:
    """Mean absolute outputs of both, their mean absolute difference, and that as a percentage of the float mean."""
    magnitude = expected.abs().mean().item()
    difference = (expected - actual).abs().mean().item()
    return {
        "float_mean_absolute_output": magnitude,
        "mean_absolute_output": actual.abs().mean().item(),
        "mean_absolute_difference": difference,
        "difference_percent": 100 * difference / magnitude if magnitude else (math.inf if difference else 0.0),
    }
