"""Quality of encoders against the same in plain transformers; int8 is what is deployed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from sklearn.metrics import f1_score
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from storage.artifacts import ArtifactStore
from tasks.data.tensor_files import SAMPLES
from tasks.runtimes.build import open_candidate
from tasks.values.job import Job, Workspace
from tasks.workload import Workload
from tests.tasks.domains.text_encoder.encoders import LABELS, encoder, sentences, write_directory, write_table
from tests.tasks.pipeline import build, evaluate, job_of

TEXTS, CLASSES = sentences()
SPLIT = ["train"] * 40 + ["calibration"] * 20 + ["test"] * 60


def ready(folder: Path, kind: str = "bert", **changes: object) -> tuple[Job[Workload], ArtifactStore]:
    write_directory(folder / "encoder", kind)
    path = write_table(folder, text=TEXTS, label=CLASSES, part=SPLIT)
    data = {"kind": "parquet", "uri": str(path), "text": "text", "label": "label", "split": "part"}
    store = ArtifactStore(folder)
    return job_of(encoder(folder, data=data, **changes), store), store


def plain_logits(folder: Path) -> Tensor:
    """What transformers' own classes say of the test texts, one after another."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "encoder")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "encoder").eval()
    with torch.inference_mode():
        return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS[60:]])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.slow
def test_the_quality_is_that_of_plain_transformers(tmp_path: Path, kind: str) -> None:
    job, store = ready(tmp_path, kind)
    found = evaluate(job, build(job, "float", "eager", store), store)
    predicted = plain_logits(tmp_path).argmax(1)
    truth = torch.tensor([LABELS.index(label) for label in CLASSES[60:]])
    assert found.quality == pytest.approx(100 * (predicted == truth).double().mean().item(), abs=1e-6)
    macro = f1_score(truth, predicted, average="macro", labels=sorted({*truth.tolist(), *predicted.tolist()}))
    assert found.metrics["f1-macro"] == pytest.approx(macro, abs=1e-6)


@pytest.mark.parametrize("runtime", ["torchscript", "onnxruntime"])
@pytest.mark.slow
def test_int8_is_evaluated_in_its_deployed_form_text_by_text(tmp_path: Path, runtime: str) -> None:
    job, store = ready(tmp_path)
    candidate = build(job, "int8", runtime, store)
    found = evaluate(job, candidate, store)
    deployed = open_candidate(candidate, Workspace(store), 1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "encoder")
    predicted = []
    for text in TEXTS[60:]:
        given = tokenizer(text, return_tensors="pt")
        outputs = deployed(given["input_ids"], given["attention_mask"])
        predicted.append((outputs[0] if isinstance(outputs, tuple) else outputs).argmax().item())
    right = [LABELS[index] == label for index, label in zip(predicted, CLASSES[60:], strict=True)]
    assert found.mode == "rows apart"
    assert found.quality == pytest.approx(100 * sum(right) / len(right), abs=1e-6)
    kept = load_file(store.path(found.outputs.kind, found.outputs.digest) / SAMPLES)
    assert kept["prediction"].tolist() == predicted


@pytest.mark.slow
def test_embeddings_are_compared_with_the_float_models_and_by_the_rank_of_their_pairs(tmp_path: Path) -> None:
    write_directory(tmp_path / "encoder", task="embedding")
    # The same words in another order: near, but not equal.
    pairs = [" ".join(reversed(text.split())) for text in TEXTS]
    path = write_table(tmp_path, text=TEXTS, other=pairs, part=SPLIT)
    workload = encoder(
        tmp_path,
        data={"kind": "parquet", "uri": str(path), "text": "text", "pair": "other", "split": "part"},
        model={"kind": "directory", "path": "encoder", "task": "embedding"},
    )
    store = ArtifactStore(tmp_path)
    job = job_of(workload, store)
    exact, rounded = (evaluate(job, build(job, name, "torchscript", store), store) for name in ("float", "int8"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "encoder")
    model = transformers.AutoModel.from_pretrained(tmp_path / "encoder").eval()
    with torch.inference_mode():
        queries, answers = (
            torch.cat([model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1) for text in texts])
            for texts in (TEXTS[60:], pairs[60:])
        )
    likeness = normalize(queries.double()) @ normalize(answers.double()).T
    ranks = (likeness > likeness.diagonal().unsqueeze(1) + 1e-6).sum(1) + 1
    assert exact.quality_metric == "retrieval"
    assert exact.quality == pytest.approx((1 / ranks.double()).mean().item(), abs=1e-6)
    assert exact.metrics["cosine"] == pytest.approx(1, abs=1e-6)
    kept = load_file(store.path(rounded.outputs.kind, rounded.outputs.digest) / SAMPLES)
    expected = cosine_similarity(kept["output"].double(), queries.double()).mean().item()
    assert rounded.metrics["cosine"] == pytest.approx(expected, abs=1e-6)
    assert rounded.metrics["cosine"] < 1
