"""A candidate's quality, always computed anew, with what it gave kept in the store."""

from __future__ import annotations

import hashlib

import torch
from safetensors.torch import save

from storage.artifacts import artifact_digest
from storage.errors import MeasurementError
from tasks.build import open_candidate
from tasks.data.metrics import Quality
from tasks.extensions import DOMAINS, RUNTIMES
from tasks.job import Job, Workspace
from tasks.outputs import Call
from tasks.proof.golden import golden_cases
from tasks.refs import ArtifactRef, CandidateRef
from tasks.results import Evaluation
from tasks.runtimes.base import CandidateFiles
from tasks.tensor_files import GOLDEN, SAMPLES, Golden
from tasks.workload.workload import Workload

KIND = "outputs"


def evaluate(job: Job[Workload], candidate: CandidateRef, workspace: Workspace) -> Evaluation:
    """Compute one candidate's quality and keep its golden outputs and per-sample results.

    Raises
    ------
    MeasurementError
        The model computes NaN or infinities, or its outputs do not fit the data.
    """
    workload = job.workload
    recipe = CandidateFiles.find(candidate, workspace.store).recipe()
    apart = RUNTIMES[candidate.runtime].couples_rows(recipe)
    model = open_candidate(candidate, workspace, torch.get_num_threads())
    with model.scope(), torch.inference_mode():
        try:
            quality, batched = quality_of(job, model.call, workspace, apart=apart)
        except MeasurementError as error:
            raise MeasurementError(
                f'Recipe "{candidate.recipe}" ({candidate.runtime}) of workload "{workload.name}": {error.message}',
                hint=error.hint,
            ) from error
        golden, batching = golden_cases(job, model.call, workspace)
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
        outputs=_keep(candidate, golden, quality, workspace),
    )


def quality_of(job: Job[Workload], call: Call, workspace: Workspace, *, apart: bool) -> tuple[Quality, Quality]:
    """Quality as a deployed model is called, and with rows together in a call.

    They are one where the rows of a call do not depend on each other: then they are evaluated together, which is
    faster. Otherwise the first is evaluated with rows `apart`.

    Raises
    ------
    MeasurementError
        The model computes NaN or infinities, or its outputs do not fit the data.
    """
    domain = DOMAINS[job.workload.domain]
    batched = domain.evaluate(job, call, workspace)
    return (domain.evaluate(job, call, workspace, apart=True) if apart else batched), batched


def _keep(candidate: CandidateRef, golden: Golden, quality: Quality, workspace: Workspace) -> ArtifactRef:
    """Write golden tensors and per-sample results; the digest is of these bytes, not of what they were made from."""
    files = {
        GOLDEN: golden.to_bytes(),
        SAMPLES: save({name: tensor.contiguous() for name, tensor in quality.samples.items()}),
    }
    made_from = {
        "candidate": candidate.digest,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    digest = artifact_digest(KIND, made_from)
    if workspace.store.find(KIND, digest) is None:
        with workspace.store.create(KIND, digest, made_from) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
    return ArtifactRef(kind=KIND, digest=digest)
