"""What an evaluation keeps, on the bare LSTM."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.domains import DOMAINS
from tasks.tensor_files import GOLDEN, Golden
from tasks.workload import read_workload
from tests.tasks.pipeline import build, evaluate, job_of

_WORKLOAD = Path(__file__).parents[2] / "flows" / "workloads" / "lstm-demo.toml"


def test_the_same_outputs_are_written_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    candidates = [build(job, recipe.name, "eager", store) for recipe in job.workload.recipe]
    first, other = (evaluate(job, candidate, store) for candidate in candidates)
    assert evaluate(job, candidates[0], store) == first
    assert other.outputs != first.outputs
    golden = Golden.read(store.path(first.outputs.kind, first.outputs.digest) / GOLDEN)
    assert list(golden.inputs) == ["inputs", "h", "c"]
    assert len(golden.outputs) == 3


def test_a_failure_names_the_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MeasurementError("it computes NaN", hint="Look at it.")

    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    candidate = build(job, "float", "eager", store)
    monkeypatch.setattr(type(DOMAINS[job.workload.domain]), "evaluate", fail)
    with pytest.raises(MeasurementError, match=r'Recipe "float" \(eager\) of workload "lstm-demo": it computes NaN'):
        evaluate(job, candidate, store)
