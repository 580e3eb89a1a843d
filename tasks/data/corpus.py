"""Word corpora: texts in the WikiText layout, and the language reference that comes with CPython.

A line's tokens are ``line.split() + ["<eos>"]``. A word's id is the number of distinct words before it.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count, product
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts import ArtifactStore
from storage.digest import digest_of, file_digest
from storage.errors import InputError
from storage.errors import shown as as_shown
from tasks.data.archive import open_source
from tasks.data.samples import ColumnWriter, Description, find_or_write
from tasks.data.sections import PydocTopics, TextCorpus
from tasks.environment.libraries import reported_as
from tasks.environment.sources import code_digest
from tasks.values.job import Progress, Workspace, silent
from tasks.values.refs import DatasetRef

SPLITS = ("train", "valid", "test")
_LAYOUTS = ("{}.txt", "wiki.{}.tokens")
_HELD_OUT_SHARE = 0.1
_VOCABULARY_FILE = "vocabulary.parquet"
_BLOCK_CHARACTERS = 1 << 20


def prepare_text(data: TextCorpus, workspace: Workspace) -> DatasetRef:
    """Tokenize the texts in a directory or an archive."""
    downloads = workspace.store.root / "downloads"
    with open_source(data.uri, downloads, sha256=data.sha256, progress=workspace.progress) as source:

        def find() -> dict[str, Path]:
            return find_texts(source.path(), as_shown(data.uri))

        if source.sha256:
            return _prepare(find, {"archive": source.sha256}, workspace)
        return _prepare(find, {"texts": {split: file_digest(path) for split, path in find().items()}}, workspace)


def prepare_pydoc(data: PydocTopics, workspace: Workspace) -> DatasetRef:
    """Tokenize the topics in ``pydoc_data.topics``, which depend on the Python version, divided into splits."""
    from pydoc_data.topics import topics

    source = {"topics": digest_of({"topics": topics}), "seed": data.seed}
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        return _prepare(lambda: _write_texts(topics, data.seed, Path(folder)), source, workspace)


def split_topics(topics: Mapping[str, str], seed: int) -> dict[str, list[str]]:
    """Return the topic names, keyed by split; the valid and test splits each contain at most a tenth of the text."""
    names = sorted(topics)
    random.Random(seed).shuffle(names)
    room = dict.fromkeys(("test", "valid"), _HELD_OUT_SHARE * sum(len(topics[name]) for name in names))
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in names:
        split = next((split for split, left in room.items() if len(topics[name]) <= left), "train")
        splits[split].append(name)
        if split in room:
            room[split] -= len(topics[name])
    return {split: sorted(members) for split, members in splits.items()}


def find_texts(folder: Path, shown: str) -> dict[str, Path]:
    """Return the paths of a corpus's three texts in `folder` or two levels of subfolders, keyed by split."""
    corpora = []
    for depth, name in product(("", "*/", "*/*/"), _LAYOUTS):
        for first in sorted(folder.glob(depth + name.format(SPLITS[0]))):
            texts = {split: first.parent / name.format(split) for split in SPLITS}
            if all(path.is_file() for path in texts.values()):
                corpora.append(texts)
    if len(corpora) != 1:
        raise InputError(
            f"{shown} contains {len(corpora)} corpora instead of one.",
            hint="Put train.txt, valid.txt and test.txt, or wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, "
            "into one folder.",
        )
    return corpora[0]


def load_vocabulary(dataset: DatasetRef, store: ArtifactStore) -> list[str]:
    """Return the words of a corpus, ordered by id."""
    table = pq.read_table(store.path(dataset.kind, dataset.digest) / _VOCABULARY_FILE, columns=["word"])
    return cast(list[str], table.column("word").to_pylist())


def _prepare(find: Callable[[], Mapping[str, Path]], source: Mapping[str, object], workspace: Workspace) -> DatasetRef:
    """Find the stored corpus for `source`, or create the corpus by tokenizing the texts that `find` returns."""

    def fill(folder: Path) -> Description:
        texts = find()
        lengths, words = tokenize(texts, folder, workspace.progress)
        for split, length in lengths.items():
            if not length:
                raise InputError(f"{texts[split]} is empty.", hint=f"Provide text for the {split} split.")
        return Description(splits=lengths, vocabulary=words)

    return find_or_write(workspace.store, {**source, "code": code_digest(__name__)}, fill)


def _write_texts(topics: Mapping[str, str], seed: int, folder: Path) -> dict[str, Path]:
    texts = {}
    for split, names in split_topics(topics, seed).items():
        texts[split] = folder / f"{split}.txt"
        lines = (topics[name].removesuffix("\n") + "\n" for name in names)
        texts[split].write_text("".join(lines), encoding="utf-8", newline="")
    return texts


def tokenize(texts: Mapping[str, Path], folder: Path, progress: Progress = silent) -> tuple[dict[str, int], int]:
    """Tokenize texts in the given order; write each text's token ids (int32) and ``vocabulary.parquet`` to a folder."""
    ids: defaultdict[str, int] = defaultdict(count().__next__)
    total = sum(path.stat().st_size for path in texts.values())
    done = 0
    lengths = {}
    for split, path in texts.items():
        hint = "Convert the text to UTF-8, for example with iconv."
        with (
            ColumnWriter(folder, split, "tokens", "<i4") as column,
            reported_as(f"{path} is not valid UTF-8", hint),
            path.open(encoding="utf-8") as stream,
        ):
            while lines := stream.readlines(_BLOCK_CHARACTERS):
                words = " <eos> ".join([*lines, ""]).split()
                column.append(np.fromiter(map(ids.__getitem__, words), dtype=np.int32, count=len(words)))
                done += sum(map(len, lines))
                progress(done, total, "characters")
        lengths[split] = column.length
    progress(total, total, "characters")
    words_by_id = pa.table({"word": pa.array(list(ids), pa.string())})
    pq.write_table(words_by_id, folder / _VOCABULARY_FILE, compression="zstd", use_dictionary=False)
    return lengths, len(ids)
