"""Bundles whose model ranks classes: no golden row may choose another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.seal import MANIFEST, write_sums
from tasks.publish.verify import verify
from tests.tasks import pipeline
from tests.tasks.publish.conftest import Made
from tests.tasks.runtimes.conftest import MakeJob

STATIC = {"name": "int8", "method": "static", "calibration_batches": 1, "calibration_batch_size": 8}


@pytest.mark.slow
def test_another_first_choice_is_refused_however_small_the_difference(
    images: MakeJob, store: ArtifactStore, tmp_path: Path
) -> None:
    job = images(STATIC | {"runtimes": ["onnxruntime"]})
    candidate = pipeline.build(job, "int8", "onnxruntime", store)
    made = Made(job, candidate, pipeline.evaluate(job, candidate, store), store)
    folder = tmp_path / "bundle"
    shutil.copytree(tmp_path / made.package(BundleStore(tmp_path)).location, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    assert json.loads((folder / MANIFEST).read_text())["golden"]["cases"] == 10
    tensors = load_file(folder / "golden.safetensors")
    logits = tensors["3.output.0"][0]
    first, second = logits.argsort()[::-1][:2]
    logits[second] = logits[first] + 1e-6 * abs(logits[first])
    save_file(tensors, folder / "golden.safetensors")
    manifest = json.loads((folder / MANIFEST).read_text())
    for output in manifest["model"]["outputs"]:
        output["tolerance"] = 1e6
    (folder / MANIFEST).write_text(json.dumps(manifest))
    write_sums(folder)
    report = verify(folder)
    assert not report.ok
    assert "the top-1 prediction differs in 1 of " in report.problem
