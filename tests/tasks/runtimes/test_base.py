"""What runtimes have in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from storage.artifacts import ArtifactStore
from tasks.data.outputs import distance, intra_op_threads, tensors_of
from tasks.domains.language_model import WordLanguageModelSpec
from tasks.domains.language_model.domain import segment_losses
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.workload.recipe import RUNTIMES
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob

RECIPES: dict[str, dict[str, Any]] = {
    "static": {"method": "static", "calibration_batches": 1, "calibration_batch_size": 8},
    "static-onednn": {"method": "static", "calibration_batches": 1, "calibration_batch_size": 8, "engine": "onednn"},
    "dynamic": {"method": "dynamic", "modules": ["Linear"]},
}


@pytest.mark.parametrize("network", ["plain", "without_biases"])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.slow
def test_the_reference_of_a_torch_module_has_the_same_outputs(
    images: MakeJob, store: ArtifactStore, name: str, network: str
) -> None:
    job = images(RECIPES[name] | {"name": name, "runtimes": ["eager"]}, network=network)
    files = CandidateFiles.find(pipeline.build(job, name, "eager", store), store)
    opener = runtime_named("eager").opener()
    opened, exact = opener.open(files, 1), opener.reference(files, 1)
    assert exact is not None
    inputs = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        (found,), (expected,) = tensors_of(opened(inputs)), tensors_of(exact(inputs))
    assert distance(found, expected) < 0.02


# ExecuTorch's programs take steps of one length only (test_executorch), and compiling takes half a minute.
@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param(name, marks=[pytest.mark.long] if name == "aot-inductor" else [])
        for name in RUNTIMES
        if name != "executorch"
    ],
)
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
