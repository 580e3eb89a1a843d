from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from tasks.data.corpus import load_vocabulary, split_topics
from tasks.data.samples import load_samples
from tests.tasks.pipeline import prepare
from tests.tasks.workloads import workload_of

TOPICS = {f"topic{number}": "word " * (number % 17 * 50 + 1) for number in range(80)}


@pytest.mark.slow
def test_topics_are_split_without_overlap_or_loss_and_by_length() -> None:
    splits = split_topics(TOPICS, seed=0)
    assert sorted(name for names in splits.values() for name in names) == sorted(TOPICS)
    total = sum(map(len, TOPICS.values()))
    for split in ("valid", "test"):
        assert 0.08 < sum(len(TOPICS[name]) for name in splits[split]) / total <= 0.1
    assert split_topics(TOPICS, seed=1) == split_topics(dict(reversed(TOPICS.items())), seed=1)
    assert split_topics(TOPICS, seed=1) != split_topics(TOPICS, seed=2)


def test_pythons_own_reference_is_a_corpus_of_english(tmp_path: Path) -> None:
    workload = workload_of("language-model", {"kind": "pydoc-topics"}, {"kind": "word-lm"}, {"kind": "seeded"})
    store = ArtifactStore(tmp_path)
    dataset = prepare(workload, store)
    assert dataset == prepare(workload, store)
    assert sum(dataset.splits.values()) > 50_000
    assert {"the", "<eos>", "statement"} <= set(load_vocabulary(dataset, store))
    assert len(load_samples(dataset, "test", store)["tokens"]) == dataset.splits["test"] > 4_000
