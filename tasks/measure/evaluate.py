"""Evaluate a candidate's quality, and compare it with the baseline's quality on the same samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from safetensors.numpy import load_file
from safetensors.torch import save

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import MeasurementError
from tasks.data import paired
from tasks.data.evaluation import Quality
from tasks.data.outputs import Call
from tasks.data.scores import OwnScore
from tasks.data.tensor_files import GOLDEN, SAMPLES, Golden
from tasks.domains import domain_named
from tasks.environment.machine import host_conditions
from tasks.environment.sources import code_digest
from tasks.measure.proof.golden import golden_cases
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.runtimes.build import open_candidate
from tasks.values.job import Fact, Job, Workspace
from tasks.values.refs import ArtifactRef, CandidateRef
from tasks.values.results import Comparison, Contributions, Evaluation
from tasks.workload.workload import Workload

KIND, FACT = "outputs", "evaluation"


def find_or_evaluate(job: Job[Workload], candidate: CandidateRef, workspace: Workspace) -> Evaluation:
    """Return a candidate's evaluation; evaluate only if the store lacks a result for the same conditions.

    A custom metric may depend on anything, so a workload with a custom metric is evaluated in every run.
    """
    store, fact = workspace.store, _fact(job, candidate)
    found = fact.find(store) if fact else None
    if found is not None and store.find(found.outputs.kind, found.outputs.digest) is not None:
        # Recipes with equal content but different names share a candidate.
        return found.model_copy(update={"recipe": candidate.recipe, "runtime": candidate.runtime})
    evaluation = evaluate(job, candidate, workspace)
    if fact is not None:
        fact.keep(evaluation, store)
    return evaluation


def _fact(job: Job[Workload], candidate: CandidateRef) -> Fact[Evaluation] | None:
    workload, domain = job.workload, domain_named(job.workload.domain)
    if isinstance(domain.metric(workload), OwnScore):
        return None
    opener = runtime_named(candidate.runtime).module("open")
    conditions = {
        "workload": workload.model_dump(mode="json", include={"domain", "data", "model", "evaluate"}),
        "inputs": workload.benchmark.model_dump(mode="json", include={"batch_size", "sequence_length"}),
        "dataset": [job.dataset.digest, job.dataset.judged_on, job.dataset.at_most],
        "checkpoint": job.checkpoint.digest,
        "code": code_digest(__name__, type(domain).__module__, opener),
        "host": host_conditions(*workload.distributions),
        "threads": torch.get_num_threads(),
    }
    return Fact(FACT, Evaluation, candidate, conditions)


def evaluate(job: Job[Workload], candidate: CandidateRef, workspace: Workspace) -> Evaluation:
    """Compute a candidate's quality; store the candidate's golden outputs and per-sample results."""
    workload = job.workload
    singly = CandidateFiles.find(candidate, workspace.store).spec().couples_rows
    model = open_candidate(candidate, workspace, torch.get_num_threads())
    with model.scope(), torch.inference_mode():
        try:
            # The golden cases come first, as in a launch, because a runtime may compile only the first shapes apart.
            golden, batching = golden_cases(job, model.call, workspace)
            quality, batched = quality_of(job, model.call, workspace, singly=singly)
        except MeasurementError as error:
            raise MeasurementError(
                f'Recipe "{candidate.recipe}" ({candidate.runtime}) of workload "{workload.name}": {error.message}',
                hint=error.hint,
            ) from error
    return Evaluation(
        recipe=candidate.recipe,
        runtime=candidate.runtime,
        quality_metric=quality.metric,
        quality=quality.value,
        higher_is_better=quality.higher_is_better,
        metrics=quality.metrics,
        mode=quality.mode,
        quality_batched=batched.value,
        contributions=quality.contributions,
        samples=quality.count,
        batch_difference=batching.difference if batching else None,
        batch_changed=batching.changed if batching else None,
        # A model with random weights is not expected to beat a constant answer.
        constant_quality=None if workload.checkpoint.kind == "seeded" else quality.constant,
        outputs=_store_outputs(candidate, golden, quality, workspace),
    )


def quality_of(job: Job[Workload], call: Call, workspace: Workspace, *, singly: bool) -> tuple[Quality, Quality]:
    """Return two qualities: one for separate rows, as in deployment, and one for calls with several rows.

    If the rows of a call affect each other (`singly`), the first quality is measured with a separate call for each row.
    """
    domain = domain_named(job.workload.domain)
    batched = domain.evaluate(job, call, workspace)
    return (domain.evaluate(job, call, workspace, singly=True) if singly else batched), batched


def _store_outputs(candidate: CandidateRef, golden: Golden, quality: Quality, workspace: Workspace) -> ArtifactRef:
    """Write golden tensors and per-sample results; the artifact's digest covers the written bytes."""
    samples = save({name: tensor.contiguous() for name, tensor in quality.paired().items()})
    files = {GOLDEN: golden.to_bytes(), SAMPLES: samples}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    made_from = {"candidate": candidate.digest, "files": digests}
    digest = artifact_digest(KIND, made_from)
    if workspace.store.find(KIND, digest) is None:
        with workspace.store.create(KIND, digest, made_from) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
    return ArtifactRef(kind=KIND, digest=digest)


INTERVALS: dict[Contributions, Callable[..., paired.PairedDifference]] = {
    "independent": paired.bootstrap_difference,
    "right-or-wrong": paired.score_difference,
    "serial": paired.serial_difference,
    "resampled": paired.resampled_difference,
}


def compare(baseline: Evaluation, candidate: Evaluation, store: ArtifactStore, *, comparisons: int = 1) -> Comparison:
    """Return the quality difference with its paired 95% interval, and the agreement of the predictions.

    With several `comparisons`, the candidates' intervals hold simultaneously (Bonferroni), so the quality of the best
    candidate is not overestimated. Each ``samples.safetensors`` may contain ``quality``, float32 [N], and
    ``prediction``, int64 [N]. The interval is None if ``quality`` is missing or contains only one value. Raise
    `MeasurementError` if the candidates were evaluated on different samples or with different metrics.
    """
    measured = [(each.quality_metric, each.samples, each.contributions) for each in (baseline, candidate)]
    if measured[0] != measured[1]:
        raise MeasurementError(
            f"{_label(candidate)} cannot be compared with {_label(baseline)}, because their metrics or samples differ.",
            hint="Evaluate both candidates with the same [evaluate] settings on the same data.",
        )
    before, after = (
        load_file(store.path(evaluation.outputs.kind, evaluation.outputs.digest) / SAMPLES)
        for evaluation in (baseline, candidate)
    )
    difference = candidate.quality - baseline.quality
    low = high = agreement = None
    if baseline.name == candidate.name:
        # A model does not differ from itself, so the width of the interval is 0.
        low = high = difference if "quality" in before else None
    elif "quality" in before and "quality" in after and len(before["quality"]) > 1:
        _, low, high = INTERVALS[baseline.contributions](before["quality"], after["quality"], comparisons=comparisons)
    if "prediction" in before and "prediction" in after:
        agreement = float((before["prediction"] == after["prediction"]).mean())
    ends = {"quality_difference_low": low, "quality_difference_high": high}
    return Comparison(quality_difference=difference, agreement=agreement, **ends)


def compare_all(
    baseline: Evaluation,
    candidates: Sequence[Evaluation],
    workspace: Workspace,
    comparisons: Sequence[int] | None = None,
) -> list[Comparison]:
    """Compare each candidate with the baseline, and return the results in the candidates' order; see `compare`."""
    compared, counts = [], comparisons or [1] * len(candidates)
    for number, (candidate, count) in enumerate(zip(candidates, counts, strict=True), start=1):
        compared.append(compare(baseline, candidate, workspace.store, comparisons=count))
        workspace.progress(number, len(candidates), "candidates")
    return compared


def _label(evaluation: Evaluation) -> str:
    return f"{evaluation.name} ({evaluation.quality_metric} on {evaluation.samples} samples)"
