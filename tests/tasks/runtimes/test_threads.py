"""Models that several threads call at the same time give each thread its own outputs."""

from __future__ import annotations

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.domains.language_model import WordLanguageModelSpec
from tasks.domains.language_model.domain import segment_losses
from tasks.extensions import RUNTIMES
from tasks.outputs import intra_op_threads
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob


@pytest.mark.parametrize("runtime", list(RUNTIMES))
@pytest.mark.slow
def test_several_lanes_of_a_stream_equal_one(words: MakeJob, store: ArtifactStore, runtime: str) -> None:
    job = words({"name": "lanes", "method": "none", "runtimes": [runtime]})
    model = pipeline.opened(pipeline.build(job, "lanes", runtime, store), store)
    spec = job.workload.model
    assert isinstance(spec, WordLanguageModelSpec)
    stream = torch.arange(3000, dtype=torch.int32) ** 2 % job.dataset.vocabulary
    losses = []
    for threads in (1, 4):
        with torch.inference_mode(), intra_op_threads(threads), model.scope():
            losses.append(segment_losses(model.call, stream, spec, 16, 8, columns=4, rows=16))
    assert torch.equal(*losses)
