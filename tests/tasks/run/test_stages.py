"""A stage of one candidate ends in one line, whatever a library raises or prints in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from tasks.environment.libraries import LibraryError
from tasks.values.job import Job
from tasks.workload import Workload
from tests.tasks.domains.custom.own import own, write
from tests.tasks.pipeline import build, job_of

RECIPES = [
    {"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]},
    {"name": "int8", "method": "dynamic", "modules": ["Linear"], "runtimes": ["eager"]},
]
PRINTED = "Traceback (most recent call last): of the library's\n"
REASON = "LookupError: no such kernel: for this in test_stages.py, line 27. --debug shows the traceback."


def fail(*_: object, **__: object) -> None:
    sys.stderr.write(PRINTED)
    raise LookupError("no such kernel:\n  for this\n  and a trace")


@pytest.fixture
def job(tmp_path: Path) -> Job[Workload]:
    write(tmp_path)
    return job_of(own(tmp_path, recipe=RECIPES), ArtifactStore(tmp_path / "store"))


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


@pytest.mark.slow
def test_a_candidate_is_built_from_a_job(
    job: Job[Workload], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.jit.freeze", fail)
    with pytest.raises(LibraryError) as caught:
        build(job, "float", "torchscript", store)
    assert str(caught.value) == f"The candidate cannot be built for torchscript: {REASON}"
    assert PRINTED in caught.value.in_full()
    assert capfd.readouterr() == ("", "")
    assert build(job, "float", "eager", store).runtime == "eager"
