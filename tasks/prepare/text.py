"""Text corpora in WikiText's layout, and reading prepared corpora back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.parquet as pq

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import file_digest, source_digest
from storage.errors import InputError
from tasks.prepare import blocks, tokenize
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef
from tasks.workload import Workload
from tasks.workload.data import TextCorpus

if TYPE_CHECKING:
    import torch

KIND = "corpus"
SPLITS = ("train", "valid", "test")


def prepare_text(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    """Tokenize a directory of texts."""
    data = workload.data
    if not isinstance(data, TextCorpus):
        raise TypeError(f"not a text corpus: {data.kind}")
    texts = find_texts(Path(data.uri))
    return corpus(texts, {"texts": {split: file_digest(path) for split, path in texts.items()}}, store, progress)


def find_texts(folder: Path) -> dict[str, Path]:
    """The three texts of a corpus folder, in the order in which ids are given."""
    found = {}
    for split in SPLITS:
        candidates = [folder / f"{split}.txt", folder / f"wiki.{split}.tokens"]
        existing = [path for path in candidates if path.is_file()]
        if not existing:
            raise InputError(f"{folder}: there is neither {candidates[0].name} nor {candidates[1].name}.")
        found[split] = existing[0]
    return found


def corpus(
    texts: Mapping[str, Path], source: Mapping[str, Any], store: ArtifactStore, progress: Progress = silent
) -> DatasetRef:
    """Tokenize `texts` into a corpus artifact; `source` says what decides their content."""
    made_from = {**source, "made_by": source_digest(blocks, tokenize)}
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with store.create(KIND, digest, made_from) as folder:
            tokenize.tokenize(texts, folder, progress=progress)
    return describe(digest, store)


def describe(digest: str, store: ArtifactStore) -> DatasetRef:
    """The reference of a corpus that is in the store."""
    folder = store.path(KIND, digest)
    splits = {split: len(np.load(folder / f"{split}.npy", mmap_mode="r")) for split in SPLITS}
    words = pq.read_metadata(folder / tokenize.VOCABULARY_FILE).num_rows
    return DatasetRef(kind=KIND, digest=digest, splits=splits, vocabulary=words)


def load_ids(dataset: DatasetRef, split: str, store: ArtifactStore) -> torch.Tensor:
    """The token ids of a split: int32 [tokens], mapped from the file, so that nothing is copied or read ahead.

    The mapping is private: writing to the tensor never reaches the file.
    """
    import torch

    path = store.path(dataset.kind, dataset.digest) / f"{split}.npy"
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def load_vocabulary(dataset: DatasetRef, store: ArtifactStore) -> list[str]:
    """The words of a corpus by id."""
    table = pq.read_table(store.path(dataset.kind, dataset.digest) / tokenize.VOCABULARY_FILE, columns=["word"])
    return cast(list[str], table.column("word").to_pylist())
