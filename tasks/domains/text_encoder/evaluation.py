"""Quality of a text encoder on the test split, with texts of like length together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tasks.data.evaluation import as_quality, evaluate_batches, named, outputs_in_order
from tasks.data.metrics import Quality
from tasks.data.samples import read_description
from tasks.data.scoring import Kept
from tasks.data.weights import load_state
from tasks.domains.text_encoder.network import build_encoder
from tasks.domains.text_encoder.texts import PAIRS, Texts, load_texts

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.domains.text_encoder import EncoderWorkload
    from tasks.job import Job, Workspace
    from tasks.outputs import Call

_BESIDE = {"accuracy": {"f1-macro": "f1-macro"}, "f1-macro": {"accuracy": "accuracy"}}


def evaluate_encoder(job: Job[EncoderWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
    """Compute ``evaluate.metric`` of the whole test split, and the task's other metric beside it.

    Raises
    ------
    MeasurementError
        The model's outputs are NaN or infinite, or are no logits of the data's classes.
    """
    texts, workload = load_texts(job.dataset, "test", workspace.store), job.workload
    if workload.model.task == "classification":
        quality = evaluate_batches(
            call,
            texts.batches(workload.evaluate.batch_size, texts.labels, apart=apart),
            named(workload.metric),
            total=len(texts),
            apart=apart,
            also=_BESIDE[workload.metric],
            classes=job.dataset.classes,
            progress=workspace.progress,
            unit="texts",
        )
    else:
        quality = _of_vectors(job, call, texts, workspace, apart=apart)
    cut = read_description(job.dataset, workspace.store).cut
    return replace(quality, metrics=quality.metrics | ({"cut_texts": float(cut)} if cut else {}))


def _of_vectors(job: Job[EncoderWorkload], call: Call, texts: Texts, workspace: Workspace, *, apart: bool) -> Quality:
    """Compute the cosine with the float model's vectors, and where texts have pairs the rank of a text's own."""
    workload, size = job.workload, job.workload.evaluate.batch_size
    reference = build_encoder(workload.model, job.dataset)
    reference.load_state_dict(load_state(job.checkpoint, workspace.store))

    def vectors(model: Call, of: Texts, *, apart: bool) -> Tensor:
        return outputs_in_order(model, of.batches(size, apart=apart), len(of), workspace.progress, "texts")

    found = vectors(call, texts, apart=apart)
    targets = {"cosine": vectors(reference, texts, apart=False)}
    if workload.metric == "retrieval":
        pairs = load_texts(job.dataset, "test", workspace.store, PAIRS)
        targets["retrieval"] = vectors(call, pairs, apart=apart)
    scores = {name: named(name).score for name in targets}
    scored = {name: score.conclude(Kept([score.take(found, targets[name])])) for name, score in scores.items()}
    return as_quality(named(workload.metric), scored, len(texts), apart=apart)
