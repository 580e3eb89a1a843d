"""The reported quality against an evaluation in plain torch, for float weights and for the int8 file that is deployed.

Text encoders are held against transformers in ``text_encoder/test_evaluation.py``, every metric of models of one's own
in ``custom/test_evaluation.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from storage.artifacts import ArtifactStore
from tasks.data.samples import load_samples
from tasks.data.weights import load_state
from tasks.values.job import Job
from tasks.workload import Workload
from tests.tasks.domains.image_classification.networks import SMALL
from tests.tasks.pipeline import build, build_model, evaluate, job_of
from tests.tasks.text_workloads import text_workload, write_corpus
from tests.tasks.vision_workloads import image_workload

FLOAT = {"name": "float", "method": "none"}
DYNAMIC = {"name": "int8", "method": "dynamic", "modules": ["LSTM", "Linear"], "runtimes": ["torchscript"]}
STATIC = {"name": "int8", "method": "static", "runtimes": ["torchscript"]}
FORMS = pytest.mark.parametrize("recipe", ["float", "int8"])


def network(job: Job[Workload], recipe: str, store: ArtifactStore) -> nn.Module:
    """The float module with its weights, or the file that is deployed, opened by torch alone."""
    if recipe == "float":
        model = build_model(job.workload, job.dataset)
        model.load_state_dict(load_state(job.checkpoint, store))
        return model
    made = build(job, recipe, "torchscript", store)
    script: nn.Module = torch.jit.load(store.path(made.kind, made.digest) / "model.ts")
    return script


def reported(job: Job[Workload], recipe: str, store: ArtifactStore) -> float:
    made = build(job, recipe, "eager" if recipe == "float" else "torchscript", store)
    return evaluate(job, made, store).quality


@FORMS
@torch.inference_mode()
@pytest.mark.slow
def test_a_language_models_loss_is_that_of_plain_torch(tmp_path: Path, recipe: str) -> None:
    corpus, store = write_corpus(tmp_path / "corpus"), ArtifactStore(tmp_path)
    workload = text_workload(corpus, recipe=[FLOAT, DYNAMIC], evaluate={"mode": "exact", "sequence_length": 25})
    job = job_of(workload, store)
    model, ids = network(job, recipe, store), load_samples(job.dataset, "test", store)["tokens"].long()
    spec, total = job.workload.model, 0.0
    h = c = torch.zeros(spec.layers, 1, spec.hidden_size)
    for start in range(0, len(ids) - 1, 25):
        words, following = ids[start : start + 25][: len(ids) - 1 - start], ids[start + 1 : start + 26]
        logits, h, c = model(words[:, None], h, c)
        total += cross_entropy(logits.flatten(0, -2).double(), following, reduction="sum").item()
    assert reported(job, recipe, store) == pytest.approx(total / (len(ids) - 1), abs=1e-6)


@FORMS
@torch.inference_mode()
@pytest.mark.slow
def test_a_classifiers_accuracy_is_that_of_plain_torch(tmp_path: Path, recipe: str) -> None:
    store = ArtifactStore(tmp_path)
    job = job_of(image_workload(model=SMALL, checkpoint={"kind": "seeded", "seed": 0}, recipe=[FLOAT, STATIC]), store)
    split, model = load_samples(job.dataset, "test", store), network(job, recipe, store)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (split.description.mean, split.description.std))
    logits = model((split["images"] / 255 - mean) / std)
    right = (logits.argmax(1) == split.target).double().mean().item()
    assert reported(job, recipe, store) == pytest.approx(100 * right, abs=1e-6)
