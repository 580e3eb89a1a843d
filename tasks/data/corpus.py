"""Corpora of words: texts in WikiText's layout, and Python's own language reference, which every CPython carries.

A corpus is one long column of token ids a split, and ``vocabulary.parquet`` beside them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq

from storage.digest import digest_of, file_digest
from storage.errors import ConfigurationError, InputError
from storage.errors import shown as as_shown
from tasks.archive import open_source
from tasks.data.samples import Description, find_or_write
from tasks.data.tokenize import VOCABULARY_FILE, tokenize
from tasks.sources import code_digest

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.data.sections import PydocTopics, TextCorpus
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

SPLITS = ("train", "valid", "test")

_LAYOUTS = ("{}.txt", "wiki.{}.tokens")
_HELD_OUT_SHARE = 0.1


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
            return _corpus(find, {"archive": source.sha256}, workspace)
        return _corpus(find, {"texts": {split: file_digest(path) for split, path in find().items()}}, workspace)


def prepare_pydoc(data: PydocTopics, workspace: Workspace) -> DatasetRef:
    """Split the topics of ``pydoc_data.topics`` into train, valid and test and tokenize them.

    The same seed and the same Python give the same corpus; another Python's topics are another corpus.

    Raises
    ------
    ConfigurationError
        This Python was installed without its ``pydoc_data``.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigurationError(
            f"This Python ({sys.executable}) has no pydoc_data, which this corpus is made from.",
            hint='Use a complete CPython, or a corpus of your own with data.kind = "text".',
        ) from error
    source = {"topics": digest_of({"topics": topics}), "seed": data.seed}
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        return _corpus(lambda: _write_texts(topics, data.seed, Path(folder)), source, workspace)


def split_topics(topics: Mapping[str, str], seed: int) -> dict[str, list[str]]:
    """Choose the topics (names) of each split by `seed`: valid and test get a tenth of the text each, or a bit less.

    Topics differ in length by orders of magnitude, so the text is split by length and not by number of topics.
    """
    names = sorted(topics)
    random.Random(seed).shuffle(names)
    room = dict.fromkeys(("test", "valid"), _HELD_OUT_SHARE * sum(len(topics[name]) for name in names))
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in names:
        split = next((split for split, left in room.items() if len(topics[name]) <= left), "train")
        splits[split].append(name)
        if split in room:
            room[split] -= len(topics[name])
    return {split: sorted(chosen) for split, chosen in splits.items()}


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


def load_vocabulary(dataset: DatasetRef, store: ArtifactStore) -> list[str]:
    """Read the words of a corpus, by id."""
    table = pq.read_table(store.path(dataset.kind, dataset.digest) / VOCABULARY_FILE, columns=["word"])
    return cast(list[str], table.column("word").to_pylist())


def _corpus(find: Callable[[], Mapping[str, Path]], source: Mapping[str, object], workspace: Workspace) -> DatasetRef:
    """Find the corpus of the texts that `find` finds, or tokenize them; `source` decides their content."""

    def fill(folder: Path) -> Description:
        texts = find()
        lengths, words = tokenize(texts, folder, progress=workspace.progress)
        for split, length in lengths.items():
            if not length:
                raise InputError(f"{texts[split]}: the {split} split is empty.")
        return Description(splits=lengths, vocabulary=words)

    return find_or_write(workspace.store, {**source, "code": code_digest(__name__)}, fill)


def _write_texts(topics: Mapping[str, str], seed: int, folder: Path) -> dict[str, Path]:
    texts = {}
    for split, names in split_topics(topics, seed).items():
        texts[split] = folder / f"{split}.txt"
        lines = (topics[name].removesuffix("\n") + "\n" for name in names)
        texts[split].write_text("".join(lines), encoding="utf-8", newline="")
    return texts
