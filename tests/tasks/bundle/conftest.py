"""One real candidate, made by the real stages on a tiny LSTM, and bundles of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from tasks.bundle import BundleRef, package
from tasks.gate import judge
from tasks.refs import CandidateRef, CheckpointRef, DatasetRef
from tasks.results import Evaluation
from tasks.workload.workload import Workload

NIGHT = date(2026, 11, 21)


@dataclass(frozen=True)
class Made:
    """The results of the stages before packaging."""

    workload: Workload
    dataset: DatasetRef
    checkpoint: CheckpointRef
    quantized: CandidateRef
    evaluation: Evaluation
    store: ArtifactStore

    def rows(self, **changes: Any) -> list[dict[str, Any]]:
        row = {
            "run_id": "r1",
            "night": NIGHT,
            "workload": self.workload.name,
            "recipe": self.quantized.recipe,
            "runtime": "eager",
            "setting": "primary",
            "attempt": 1,
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
            "size_bytes": self.quantized.size_bytes["eager"],
            "latency_s": 1e-3,
            "speedup": 1.5,
            "speedup_low": 1.4,
            "speedup_high": 1.6,
            "block_s": [1e-3, 1e-3],
            "artifact_digest": self.quantized.digest,
        }
        return [row | changes]

    def package(self, bundles: BundleStore, *, night: date = NIGHT, run_id: str = "r1", **changes: Any) -> BundleRef:
        rows = self.rows()
        given = {
            "workload": self.workload,
            "quantized": self.quantized,
            "evaluation": self.evaluation,
            "decision": judge(self.workload, rows)[0],
            "measurements": rows,
            "dataset": self.dataset,
            "checkpoint": self.checkpoint,
            "store": self.store,
            "bundles": bundles,
        }
        return package(**(given | changes), night=night, run_id=run_id)


def make(folder: Path, *, seed: int = 29592) -> Made:
    from tasks.checkpoint import obtain
    from tasks.evaluate import evaluate
    from tasks.prepare import prepare
    from tasks.quantize import quantize

    workload = Workload.model_validate(
        {
            "schema_version": 1,
            "name": "tiny",
            "description": "A tiny LSTM",
            "purpose": "sequence",
            "licence": "Apache-2.0",
            "data": {"kind": "random-sequence", "length": 4},
            "model": {"kind": "lstm", "dimension": 4},
            "checkpoint": {"kind": "seeded", "seed": seed},
            "recipe": [
                {"name": "float", "method": "none"},
                {"name": "int8", "method": "dynamic", "modules": ["LSTM"], "engine": "qnnpack"},
            ],
        }
    )
    store = ArtifactStore(folder)
    dataset = prepare(workload, store)
    checkpoint = obtain(workload, dataset, store)
    quantized = quantize(workload, workload.recipe_named("int8"), dataset, checkpoint, store)
    evaluation = evaluate(workload, quantized, "eager", dataset, store)
    return Made(workload, dataset, checkpoint, quantized, evaluation, store)


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
