"""Evaluation by purpose of the workload, and comparison of two evaluations on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.evaluate.comparison import compare, compare_all
from tasks.progress import Progress, silent
from tasks.registry import resolve

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef, Evaluation, QuantizedRef
    from tasks.workload.recipe import Runtime
    from tasks.workload.workload import Workload

__all__ = ["EVALUATORS", "compare", "compare_all", "evaluate"]

EVALUATORS = {
    "language-model": "tasks.domains.language_model.evaluation:evaluate_language_model",
    "sequence": "tasks.domains.sequence.evaluation:evaluate_sequence",
    "image-classification": "tasks.domains.image_classification.evaluation:evaluate_classification",
}


def evaluate(
    workload: Workload,
    quantized: QuantizedRef,
    runtime: Runtime,
    dataset: DatasetRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> Evaluation:
    """Compute one candidate's quality, always anew, and keep its golden outputs and per-sample results.

    Raises
    ------
    MeasurementError
        The model computes something that is no number.
    """
    evaluator: Callable[[Workload, QuantizedRef, Runtime, DatasetRef, ArtifactStore, Progress], Evaluation]
    evaluator = resolve(EVALUATORS, workload.purpose)
    return evaluator(workload, quantized, runtime, dataset, store, progress)
