"""Text corpora in WikiText's layout, and reading prepared corpora back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow.parquet as pq

from storage.artifacts import artifact_digest
from storage.digest import file_digest
from storage.errors import InputError
from storage.messages import shown as as_shown
from tasks.archive import open_source
from tasks.domains.language_model import tokenize
from tasks.refs import DatasetRef
from tasks.sources import code_digest

if TYPE_CHECKING:
    import torch

    from storage.artifacts import ArtifactStore
    from tasks.domains.language_model.sections import TextCorpus
    from tasks.job import Workspace

KIND = "corpus"
SPLITS = ("train", "valid", "test")

_LAYOUTS = ("{}.txt", "wiki.{}.tokens")


def prepare_text(data: TextCorpus, workspace: Workspace) -> DatasetRef:
    """Tokenize the texts of a directory or an archive.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, or its ``sha256`` is missing though it is remote.
    InputError
        The texts are not available or not UTF-8, or a split is empty.
    """
    downloads = workspace.store.root / "downloads"
    with open_source(
        data.uri, downloads, sha256=data.sha256, max_bytes=data.max_bytes, progress=workspace.progress
    ) as source:

        def find() -> dict[str, Path]:
            return find_texts(source.path(), as_shown(data.uri))

        if source.sha256:
            return corpus(find, {"archive": source.sha256}, workspace)
        return corpus(find, {"texts": {split: file_digest(path) for split, path in find().items()}}, workspace)


def find_texts(folder: Path, shown: str = "") -> dict[str, Path]:
    """Find the three texts of a corpus, in the order in which ids are given, up to two folders down.

    Raises
    ------
    InputError
        There is no such set of texts, or more than one.
    """
    shown = shown or str(folder)
    for depth in ("", "*/", "*/*/"):
        found = [
            {split: first.parent / name.format(split) for split in SPLITS}
            for name in _LAYOUTS
            for first in sorted(folder.glob(depth + name.format(SPLITS[0])))
            if all((first.parent / name.format(split)).is_file() for split in SPLITS)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(str(texts["train"].relative_to(folder)) for texts in found)
            raise InputError(f"{shown}: holds several corpora: {places}.", hint="Give the folder of one of them.")
    raise InputError(
        f"{shown}: holds no corpus.",
        hint="Expected train.txt, valid.txt and test.txt, or wiki.train.tokens, wiki.valid.tokens and "
        "wiki.test.tokens, side by side.",
    )


def corpus(find: Callable[[], Mapping[str, Path]], source: Mapping[str, object], workspace: Workspace) -> DatasetRef:
    """Return the corpus of the texts that `find` finds, tokenizing them unless the store has it; see `tokenize`.

    `source` says what decides the texts' content; `find` is called only if they are to be tokenized. An empty split is
    an `InputError`.
    """
    made_from = {**source, "code": code_digest(tokenize)}
    digest, store = artifact_digest(KIND, made_from), workspace.store
    if store.find(KIND, digest) is None:
        texts = find()
        with store.create(KIND, digest, made_from) as folder:
            lengths = tokenize.tokenize(texts, folder, progress=workspace.progress)
            for split, length in lengths.items():
                if not length:
                    raise InputError(f"{texts[split]}: the {split} split is empty.")
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
