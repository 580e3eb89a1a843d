"""Training of the word language model on a tiny corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.samples import load_samples
from tasks.domains.language_model import WordLanguageModelSpec
from tasks.domains.language_model.domain import LanguageModel, batchify, word_losses
from tasks.values.job import Progress, Workspace, silent
from tasks.values.refs import DatasetRef
from tasks.workload import Workload
from tests.tasks.pipeline import build_model, prepare
from tests.tasks.text_workloads import text_workload, write_corpus

TRAINED: dict[str, Any] = {
    "kind": "train", "seed": 1, "epochs": 3, "batch_size": 4, "learning_rate": 0.05, "sequence_length": 10,
    "gradient_clip": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("train") / "corpus", lines=120)


def prepared(corpus: Path, store: Path, **changes: Any) -> tuple[Workload, ArtifactStore, DatasetRef]:
    workload, artifacts = text_workload(corpus, checkpoint=TRAINED | changes), ArtifactStore(store)
    return workload, artifacts, prepare(workload, artifacts)


def train(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, progress: Progress = silent
) -> dict[str, torch.Tensor]:
    return LanguageModel().train(workload, dataset, Workspace(store, progress))


@pytest.mark.slow
def test_training_learns_more_than_word_frequencies(corpus: Path, tmp_path: Path) -> None:
    workload, store, dataset = prepared(corpus, tmp_path, epochs=6)
    told: list[tuple[float, float]] = []
    state = train(workload, dataset, store, lambda done, total, unit="": told.append((done, total)))
    model = build_model(workload, dataset)
    model.load_state_dict(state)
    assert isinstance(workload.model, WordLanguageModelSpec)
    ids = load_samples(dataset, "test", store)["tokens"]
    loss = word_losses(model, ids, workload.model, workload.evaluate).mean().item()
    counts = (
        torch.bincount(load_samples(dataset, "train", store)["tokens"].long(), minlength=dataset.vocabulary).float() + 1
    )
    by_frequency = -(counts / counts.sum()).log()[ids[1:].long()].mean().item()
    assert loss < 0.7 * by_frequency
    assert told[-1][0] == pytest.approx(6)
    assert all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in state.values())


@pytest.mark.slow
def test_a_seed_decides_the_weights_and_nothing_else_does(corpus: Path, tmp_path: Path) -> None:
    workload, store, dataset = prepared(corpus, tmp_path, epochs=1)
    before = torch.get_rng_state()
    first = train(workload, dataset, store)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    second = train(workload, dataset, store)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other, *_ = prepared(corpus, tmp_path, epochs=1, seed=2)
    assert not torch.equal(train(other, dataset, store)["encoder.weight"], first["encoder.weight"])


@given(words=st.integers(0, 200), columns=st.integers(1, 12))
@pytest.mark.slow
def test_columns_read_the_stream_on(words: int, columns: int) -> None:
    ids = torch.arange(words, dtype=torch.int32)
    if words // columns < 2:
        with pytest.raises(InputError, match="batch_size"):
            batchify(ids, columns)
        return
    laid = batchify(ids, columns)
    assert laid.is_contiguous()
    assert laid.dtype == torch.int64
    assert laid.t().flatten().tolist() == list(range(words // columns * columns))
