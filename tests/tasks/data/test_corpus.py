from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.corpus import load_vocabulary
from tasks.data.samples import load_samples
from tasks.workload import Workload
from tests.tasks.pipeline import prepare
from tests.tasks.workloads import workload_of

TEXTS = {"train": " = A title = \n\n the cat sat \n", "valid": " the dog", "test": " a cat \n"}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def write_texts(folder: Path, pattern: str = "{}.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in TEXTS.items():
        (folder / pattern.format(split)).write_text(text, encoding="utf-8")
    return folder


def text_workload(uri: str, **settings: Any) -> Workload:
    return workload_of(
        "language-model", {"kind": "text", "uri": uri, **settings}, {"kind": "word-lm"}, {"kind": "seeded"}
    )


@pytest.mark.slow
def test_a_corpus_comes_back_as_ids_and_words(store: ArtifactStore, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "corpus")
    dataset = prepare(text_workload(str(folder)), store)
    words = ["=", "A", "title", "<eos>", "the", "cat", "sat", "dog", "a"]
    assert load_vocabulary(dataset, store) == words
    assert dataset.vocabulary == len(words)
    ids = load_samples(dataset, "test", store)["tokens"]
    assert ids.dtype == torch.int32
    assert [words[number] for number in ids] == ["a", "cat", "<eos>"]
    assert dataset.splits["test"] == 3


def test_all_layouts_and_containers_give_the_same_ids(store: ArtifactStore, tmp_path: Path) -> None:
    plain = write_texts(tmp_path / "plain")
    tokens = write_texts(tmp_path / "tokens" / "wikitext-2", "wiki.{}.tokens")
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w") as archive:
        for path in tokens.iterdir():
            archive.write(path, f"wikitext-2/{path.name}")
    with tarfile.open(tmp_path / "corpus.tar.gz", "w:gz") as tar:
        tar.add(plain, "corpus")
    places = [plain, tokens, tokens.parent, tmp_path / "corpus.zip", tmp_path / "corpus.tar.gz"]
    datasets = [prepare(text_workload(str(place)), store) for place in places]
    assert len({load_samples(dataset, "test", store)["tokens"].numpy().tobytes() for dataset in datasets}) == 1
    assert len({tuple(load_vocabulary(dataset, store)) for dataset in datasets}) == 1
    assert datasets[1] == datasets[2]


def test_missing_empty_duplicate_and_non_utf8_texts_are_named(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(NightquantError, match="contains 0 corpora"):
        prepare(text_workload(str(tmp_path)), store)
    folder = write_texts(tmp_path / "one")
    (folder / "valid.txt").write_text("")
    with pytest.raises(NightquantError, match="text for the valid split"):
        prepare(text_workload(str(folder)), store)
    (folder / "valid.txt").write_bytes(b"caf\xe9 \n")
    with pytest.raises(NightquantError, match=r"valid\.txt is not valid UTF-8"):
        prepare(text_workload(str(folder)), store)
    write_texts(folder, "wiki.{}.tokens")
    with pytest.raises(NightquantError, match="contains 2 corpora"):
        prepare(text_workload(str(folder)), store)
    with pytest.raises(NightquantError, match="cannot be read"):
        prepare(text_workload(str(tmp_path / "none.zip")), store)
