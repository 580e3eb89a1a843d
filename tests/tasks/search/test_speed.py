"""The speed of trials, with real stages and processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from tasks import stages
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.job import Workspace
from tasks.refs import ArtifactRef
from tasks.search import speed
from tasks.tensor_files import GOLDEN, Golden
from tasks.workload import read_workload
from tests.tasks.benchmark.planted import TINY
from tests.tasks.pipeline import build, evaluate, job_of

_WORKLOAD = Path(__file__).parents[3] / "flows" / "workloads" / "lstm-demo.toml"


@pytest.mark.slow
def test_trials_are_timed_in_two_launches_and_one_with_other_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "PROFILE", TINY)
    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    names = [("float", "eager"), ("dynamic-int8", "eager"), ("float", "torchscript")]
    built = [build(job, *name, store) for name in names]
    baseline, *others = [
        BenchmarkCandidate(candidate=made, outputs=evaluate(job, made, store).outputs) for made in built
    ]
    golden = Golden.read(store.path(others[1].outputs.kind, others[1].outputs.digest) / GOLDEN)
    altered = Golden(golden.inputs, tuple(output + 1 for output in golden.outputs))
    with store.create("outputs", "a" * 64, {}) as folder:
        (folder / GOLDEN).write_bytes(altered.to_bytes())
    others[1] = others[1].model_copy(update={"outputs": ArtifactRef(kind="outputs", digest="a" * 64)})
    timed = stages.time_trials(Workspace(store), job, baseline, others)
    assert set(timed.speeds) == {"dynamic-int8/eager"}
    assert set(timed.refused) == {"float/torchscript"}
    measured = timed.speeds["dynamic-int8/eager"]
    assert 0 < measured.low < measured.value < measured.high
    assert measured.launches == 2
