"""Models that several threads call at the same time give each thread its own outputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from tasks.domains.language_model import WordLanguageModelSpec
from tasks.domains.language_model.stream import segment_losses
from tasks.extensions import RUNTIMES
from tasks.outputs import intra_op_threads
from tasks.runtimes.base import Opened
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


@pytest.mark.parametrize(("parallel", "at_once"), [(False, 1), (True, 2)])
def test_calls_wait_for_each_other_unless_the_opener_allows_parallel_calls(parallel: bool, at_once: int) -> None:
    numbers, inside, most = count(), set[int](), [0]

    def call(given: Tensor) -> Tensor:
        inside.add(number := next(numbers))
        for _ in range(100):
            most[0] = max(most[0], len(inside))
            given = given @ given  # torch releases the interpreter's lock
        inside.remove(number)
        return given

    model = Opened(call, parallel=parallel).for_threads()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(model, [torch.zeros(64, 64)] * 40))
    assert most[0] == at_once
