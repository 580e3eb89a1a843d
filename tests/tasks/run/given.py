"""Results of a workload's stages as plain values."""

from __future__ import annotations

from tasks.values.job import Job
from tasks.values.refs import ArtifactRef, CandidateRef, CheckpointRef, DatasetRef
from tasks.values.results import BenchmarkResult, CandidateResult, Comparison, CurrentBundle, Evaluation, Failure
from tests.tasks.decide.test_gate import workload

BENCHMARK = BenchmarkResult(
    verdict="valid", aa_ratio=1, aa_low=1, aa_high=1, cold_aa_ratio=1, cold_aa_low=1, cold_aa_high=1,
    fingerprint="f" * 64, timings=(), evidence_before="{}", evidence_after="{}",
)  # fmt: skip
VERSION = "2026-11-20-0123456789ab"
KILLED = Failure(stage="", error="its process was killed, most likely because memory ran out.")
JOB = Job(
    workload(),
    DatasetRef(kind="random", digest="a" * 64, splits={}),
    CheckpointRef(kind="checkpoint", digest="c" * 64, parameters=1),
)


def built(recipe: str, runtime: str = "torchscript", size: int = 100, digest: str = "d" * 64) -> CandidateRef:
    return CandidateRef(kind="candidate", digest=digest, recipe=recipe, runtime=runtime, size_bytes=size)


def evaluation(recipe: str, runtime: str = "torchscript") -> Evaluation:
    """An evaluation with a loss of 1."""
    return Evaluation(
        recipe=recipe,
        runtime=runtime,
        quality_metric="loss",
        quality=1.0,
        higher_is_better=False,
        metrics={},
        quality_batched=1.0,
        samples=1,
        outputs=ArtifactRef(kind="outputs", digest="e" * 64),
    )


def candidate(recipe: str, runtime: str = "torchscript", size: int = 100, digest: str = "d" * 64) -> CandidateResult:
    """A candidate that was evaluated."""
    return CandidateResult(
        recipe=recipe,
        runtime=runtime,
        built=built(recipe, runtime, size, digest),
        evaluation=evaluation(recipe, runtime),
    )


def deployed() -> CurrentBundle:
    """A current bundle that was looked up, whose own files are to be measured."""
    return CurrentBundle(version=VERSION, candidate=built("int8"), coverage=0.9)


def difference(value: float) -> Comparison:
    return Comparison(quality_difference=value)
