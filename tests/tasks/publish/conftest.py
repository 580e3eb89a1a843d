"""One real candidate, made by the real stages on a tiny LSTM, and bundles of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import EllipsisType
from typing import Any

import pytest

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from tasks.decide.gate import GateDecision, judge
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef, package
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef
from tasks.values.results import Evaluation
from tasks.workload.workload import Workload
from tests.tasks.pipeline import build, evaluate, job_of
from tests.tasks.runtimes.conftest import images, store  # noqa: F401 - fixtures

NIGHT = date(2026, 11, 21)


@dataclass(frozen=True)
class Made:
    """The results of the stages before packaging."""

    job: Job[Workload]
    candidate: CandidateRef
    evaluation: Evaluation
    store: ArtifactStore

    def rows(self, **changes: Any) -> list[dict[str, Any]]:
        row = {
            "run_id": "r1",
            "night": NIGHT,
            "workload": self.job.workload.name,
            "recipe": self.candidate.recipe,
            "runtime": self.candidate.runtime,
            "setting": "primary",
            "threads": 1,
            "batch_size": 1,
            "status": "ok",
            "measured_at": datetime(2026, 11, 21, 3, tzinfo=UTC),
            "verdict": "valid",
            "quality_metric": self.evaluation.quality_metric,
            "quality": self.evaluation.quality,
            "higher_is_better": False,
            "quality_difference": self.evaluation.quality,
            "metrics": sorted(self.evaluation.metrics.items()),
            "size_bytes": self.candidate.size_bytes,
            "latency_s": 1e-3,
            "speedup": 1.5,
            "speedup_low": 1.4,
            "speedup_high": 1.6,
            "speedup_bound_low": 1.3,
            "speedup_bound_high": 1.7,
            "block_s": [1e-3, 1e-3],
            "artifact_digest": self.candidate.digest,
        }
        return [row | changes]

    def decision(self) -> GateDecision:
        return judge(self.job.workload, self.rows(), None).decisions[0]

    def provenance(self, **changes: Any) -> Provenance:
        given = {
            "job": self.job,
            "candidate": self.candidate,
            "evaluation": self.evaluation,
            "decision": self.decision(),
            "measurements": self.rows(),
            "night": NIGHT,
            "run_id": "r1",
        }
        return Provenance(**(given | changes))

    def package(self, bundles: BundleStore, *, replacing: str | EllipsisType | None = ..., **changes: Any) -> BundleRef:
        if replacing is ...:
            before = bundles.pointer(self.job.workload.name)
            replacing = before.version if before else None
        return package(self.provenance(**changes), Workspace(self.store), bundles, replacing)


def make(folder: Path, *, seed: int = 29592, name: str = "tiny") -> Made:
    workload = Workload.model_validate(
        {
            "schema_version": 1,
            "name": name,
            "description": "A tiny LSTM",
            "domain": "sequence",
            "licence": "Apache-2.0",
            "data": {"kind": "random-sequence", "length": 4},
            "model": {"kind": "lstm", "dimension": 4},
            "checkpoint": {"kind": "seeded", "seed": seed},
            "recipe": [
                {"name": "float", "method": "none"},
                {
                    "name": "int8",
                    "method": "dynamic",
                    "modules": ["LSTM"],
                    "engine": "qnnpack",
                    "runtimes": ["torchscript"],
                },
            ],
        }
    )
    kept = ArtifactStore(folder)
    job = job_of(workload, kept)
    candidate = build(job, "int8", "torchscript", kept)
    return Made(job, candidate, evaluate(job, candidate, kept), kept)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same workload with other weights."""
    return make(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def published(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good bundle, not to be changed."""
    root = tmp_path_factory.mktemp("handoff")
    return root / made.package(BundleStore(root)).location


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes writable copies of the good bundle."""

    def make_copy() -> Path:
        target = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(published, target)
        for path in target.iterdir():
            path.chmod(0o644)
        return target

    return make_copy
