"""Quality of a text encoder on the test split, with texts of like length together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from storage.errors import MeasurementError
from tasks.checkpoint import load_state
from tasks.domains.base import Quality
from tasks.domains.metrics import METRICS, RowMetric, SetMetric, checked_outputs, resampled
from tasks.domains.text_encoder.model import build_encoder
from tasks.domains.text_encoder.texts import Texts, load_texts, read_description
from tasks.job import Progress, silent

if TYPE_CHECKING:
    from tasks.domains.text_encoder.sections import EncoderWorkload
    from tasks.job import Job, Workspace
    from tasks.outputs import Call


def evaluate_encoder(job: Job[EncoderWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
    """``evaluate.metric`` on the whole test split, and the task's other metric beside it.

    Raises
    ------
    MeasurementError
        The model's outputs are NaN or infinite, or are no logits of the data's classes.
    """
    texts = load_texts(job.dataset, "test", workspace.store)
    size = 1 if apart else job.workload.evaluate.batch_size
    with torch.inference_mode():
        outputs = outputs_of_texts(call, texts, size, workspace.progress, apart=apart)
        if job.workload.model.task == "classification":
            quality = _of_classes(job, outputs, cast(Tensor, texts.labels))
        else:
            quality = _of_vectors(job, call, outputs, texts, workspace, apart=apart)
    cut = read_description(job.dataset, workspace.store).cut
    told = {"cut_texts": float(cut)} if cut else {}
    return replace(quality, mode="rows apart" if apart else "plain", metrics=quality.metrics | told)


def outputs_of_texts(
    call: Call, texts: Texts, batch_size: int, progress: Progress = silent, *, apart: bool = False
) -> Tensor:
    """The model's first output for every text, in the texts' order: float32 [N, …].

    Parameters
    ----------
    apart
        Call the model with one text at a time and no padding.
    """
    found: dict[int, Tensor] = {}
    batches = (([row], None) for row in range(len(texts))) if apart else texts.buckets(batch_size)
    for rows, length in batches:
        outputs = checked_outputs(call(*texts.batch(rows, length)), len(rows))
        # Copies: a runtime may write its next outputs into the same memory.
        found.update(zip(rows, outputs.clone(), strict=True))
        progress(len(found), len(texts), "texts")
    return torch.stack([found[row] for row in range(len(texts))])


def _of_classes(job: Job[EncoderWorkload], logits: Tensor, target: Tensor) -> Quality:
    """Accuracy and macro F1."""
    if logits.dim() != 2 or logits.shape[1] != job.dataset.classes:
        raise MeasurementError(
            f"the model returns logits of shape {list(logits.shape[1:])} a text, and there are "
            f"{job.dataset.classes} classes."
        )
    right, f1 = METRICS["accuracy"], METRICS["f1-macro"]
    assert isinstance(right, RowMetric)
    assert isinstance(f1, SetMetric)
    rows, prediction, truth = right.rows(logits, target), f1.reduce(logits), target.numpy()

    def f1_of(drawn: NDArray[np.int64]) -> float:
        return f1.value(prediction.numpy(), truth, np.bincount(drawn, minlength=len(truth)))

    metrics = {"accuracy": rows.mean().item(), "f1-macro": f1_of(np.arange(len(truth)))}
    metric = job.workload.metric
    by_rows = metric == "accuracy"
    return Quality(
        metric,
        metrics[metric],
        True,
        metrics,
        {"quality": rows.float() if by_rows else resampled(f1_of, len(truth)), "prediction": prediction},
        len(truth),
        contributions=right.contributions if by_rows else "resampled",
    )


def _of_vectors(
    job: Job[EncoderWorkload], call: Call, vectors: Tensor, texts: Texts, workspace: Workspace, *, apart: bool
) -> Quality:
    """Cosine with the float model's vectors, and where texts have pairs the reciprocal rank of a text's own."""
    workload = job.workload
    reference = build_encoder(workload.model, job.dataset)
    reference.load_state_dict(load_state(job.checkpoint, workspace.store))
    expected = outputs_of_texts(reference, texts, workload.evaluate.batch_size)
    rows = {"cosine": cosine_similarity(vectors.double(), expected.double())}
    if workload.metric == "retrieval":
        pairs = load_texts(job.dataset, "test", workspace.store, "pair.")
        size = 1 if apart else workload.evaluate.batch_size
        found = outputs_of_texts(call, pairs, size, workspace.progress, apart=apart)
        rows["retrieval"] = reciprocal_ranks(vectors, found)
    metrics = {name: values.mean().item() for name, values in rows.items()}
    metric = workload.metric
    samples = {"quality": rows[metric].float(), "output": vectors.float()}
    return Quality(metric, metrics[metric], True, metrics, samples, len(texts))


def reciprocal_ranks(queries: Tensor, answers: Tensor) -> Tensor:
    """1 ÷ rank of each query's own answer among all, by cosine: from float [N, H] twice to float64 [N].

    The mean is the mean reciprocal rank. Answers as near as the own one do not count against it.
    """
    likeness = normalize(queries.double(), dim=1) @ normalize(answers.double(), dim=1).T
    # Equal texts give vectors that differ by rounding.
    ahead = (likeness > likeness.diagonal().unsqueeze(1) + 1e-9).sum(1)
    return 1.0 / (1 + ahead).double()
