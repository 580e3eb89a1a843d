"""Word corpora: texts in the WikiText layout, and the language reference that comes with CPython.

A corpus consists of the file ``vocabulary.parquet`` and one column of token ids per split. A line's tokens are
``line.split() + ["<eos>"]``. Word ids are assigned in order of first appearance. For each block of text, NumPy looks up
all words in a cache. The few percent of words that are not in the cache are looked up in a Python dictionary.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts import ArtifactStore
from storage.digest import digest_of, file_digest
from storage.errors import ConfigurationError, InputError
from storage.errors import shown as as_shown
from tasks.archive import open_source
from tasks.data.samples import ColumnWriter, Description, find_or_write
from tasks.data.sections import PydocTopics, TextCorpus
from tasks.job import Progress, Workspace, silent
from tasks.refs import DatasetRef
from tasks.sources import code_digest

SPLITS = ("train", "valid", "test")
_LAYOUTS = ("{}.txt", "wiki.{}.tokens")
_HELD_OUT_SHARE = 0.1
BLOCK_BYTES = 256 << 10
VOCABULARY_FILE = "vocabulary.parquet"
_COLUMN = "tokens"

# UTF-8 encodings of the separators that ``str.split()`` recognizes: ASCII white space, U+0085, U+00A0, U+1680, U+2000
# to U+200A, U+2028, U+2029, U+202F, U+205F and U+3000.
_SPACE = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "
_WIDE_SPACE = re.compile(rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80")

_SLOT_BITS = 20
_KEY_BYTES = 16
# Odd factors for Knuth's multiplicative hashing: f = floor(2**64 / golden ratio), and f**3 modulo 2**64.
_FACTORS = tuple(np.uint64(pow(0x9E3779B97F4A7C15, power, 1 << 64)) for power in (1, 3))
# Masks for keys, uint64 [17, 2]; row n keeps the first n bytes of a key.
_MASKS = (np.tri(_KEY_BYTES + 1, _KEY_BYTES, -1, dtype=np.uint8) * 255).view(np.uint64)


def prepare_text(data: TextCorpus, workspace: Workspace) -> DatasetRef:
    """Tokenize the texts in a directory or an archive.

    Raises
    ------
    ConfigurationError
        The URI is not allowed, or ``sha256`` is missing for a remote URI.
    InputError
        A text is unavailable or is not UTF-8, or a split is empty.
    """
    downloads = workspace.store.root / "downloads"
    with open_source(
        data.uri, downloads, sha256=data.sha256, max_bytes=data.max_bytes, progress=workspace.progress
    ) as source:

        def find() -> dict[str, Path]:
            return find_texts(source.path(), as_shown(data.uri))

        if source.sha256:
            return _prepare(find, {"archive": source.sha256}, workspace)
        return _prepare(find, {"texts": {split: file_digest(path) for split, path in find().items()}}, workspace)


def prepare_pydoc(data: PydocTopics, workspace: Workspace) -> DatasetRef:
    """Tokenize the topics in ``pydoc_data.topics``, divided into train, valid and test splits.

    The same seed and the same Python version produce the same corpus. A different Python version may contain different
    topics.

    Raises
    ------
    ConfigurationError
        The Python installation lacks ``pydoc_data``.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigurationError(
            f'data.kind "pydoc-topics" needs the module pydoc_data, which this Python ({sys.executable}) lacks.',
            hint='Install a complete CPython, or use your own corpus with data.kind = "text".',
        ) from error
    source = {"topics": digest_of({"topics": topics}), "seed": data.seed}
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        return _prepare(lambda: _write_texts(topics, data.seed, Path(folder)), source, workspace)


def split_topics(topics: Mapping[str, str], seed: int) -> dict[str, list[str]]:
    """Return the topic names, keyed by split.

    The valid and test splits each contain at most a tenth of the text. The text is divided by length, not by number of
    topics, because topic lengths differ by orders of magnitude.
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
    return {split: sorted(members) for split, members in splits.items()}


def find_texts(folder: Path, shown: str = "") -> dict[str, Path]:
    """Return the paths of a corpus's three texts, keyed by split, in tokenization order.

    The search covers `folder` and two levels of subfolders.

    Raises
    ------
    InputError
        The folder does not contain exactly one corpus.
    """
    shown = shown or str(folder)
    for depth in ("", "*/", "*/*/"):
        corpora = [
            {split: first.parent / name.format(split) for split in SPLITS}
            for name in _LAYOUTS
            for first in sorted(folder.glob(depth + name.format(SPLITS[0])))
            if all((first.parent / name.format(split)).is_file() for split in SPLITS)
        ]
        if len(corpora) == 1:
            return corpora[0]
        if corpora:
            paths = ", ".join(str(texts["train"].relative_to(folder)) for texts in corpora)
            raise InputError(
                f"{shown} contains several corpora: {paths}.",
                hint="Set data.uri to a folder or archive that contains only one corpus.",
            )
    raise InputError(
        f"{shown} does not contain a corpus.",
        hint="Put train.txt, valid.txt and test.txt, or wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, "
        "into one folder.",
    )


def load_vocabulary(dataset: DatasetRef, store: ArtifactStore) -> list[str]:
    """Return the words of a corpus, ordered by id."""
    table = pq.read_table(store.path(dataset.kind, dataset.digest) / VOCABULARY_FILE, columns=["word"])
    return cast(list[str], table.column("word").to_pylist())


def _prepare(find: Callable[[], Mapping[str, Path]], source: Mapping[str, object], workspace: Workspace) -> DatasetRef:
    """Find the stored corpus for `source`, or create the corpus by tokenizing the texts that `find` returns."""

    def fill(folder: Path) -> Description:
        texts = find()
        lengths, words = tokenize(texts, folder, progress=workspace.progress)
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


class Vocabulary:
    """A vocabulary that counts words and assigns ids in order of first appearance."""

    def __init__(self) -> None:
        self._ids: defaultdict[bytes, int] = defaultdict(count().__next__)
        self._counts = np.zeros(0, dtype=np.int64)
        # A direct-mapped cache: each slot contains the key and id of the short word that was stored there last.
        self._keys = np.zeros((1 << _SLOT_BITS, 2), dtype=np.uint64)
        self._cached_ids = np.zeros(1 << _SLOT_BITS, dtype=np.int32)
        # A word that begins with 16 NUL bytes has the key 0 and belongs to the first slot. Set the first slot's key to
        # 1, so that a word with the key 0 does not match the empty slot.
        self._keys[0] = 1

    def encode(self, text: bytes) -> npt.NDArray[np.int32]:
        r"""Return the ids of all words and line endings, int32 [tokens]; each new word gets the next id.

        The text must be UTF-8 and must not begin or end inside a word. Lines may end with ``\n``, ``\r\n`` or ``\r``.
        """
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # A word's span begins at the word's first byte and ends where the next word begins.
        text = b" " + text.replace(b"\n", b" <eos> ") + b" ."
        starts = _find_words(text)
        begins, ends = starts[:-1], starts[1:]
        keys = _keys(text, begins, ends)
        hashes = keys[:, 0] * _FACTORS[0] + keys[:, 1] * _FACTORS[1]
        slots = (hashes >> np.uint64(64 - _SLOT_BITS)).view(np.int64)
        ids = self._cached_ids.take(slots)
        same = self._keys.take(slots, axis=0) == keys
        missing = np.flatnonzero(~(same[:, 0] & same[:, 1]))
        spans = zip(begins[missing].tolist(), ends[missing].tolist(), strict=True)
        words = [text[begin:end].rstrip(_SPACE) for begin, end in spans]
        if _WIDE_SPACE.search(b" ".join(words)):
            # Words with non-ASCII white space never enter the cache, so only cache misses can contain such white space.
            return self.encode(_WIDE_SPACE.sub(b" ", text[:-1]))
        ids[missing] = [self._ids[word] for word in words]
        short = missing[(ends - begins)[missing] <= _KEY_BYTES]
        self._keys[slots[short]], self._cached_ids[slots[short]] = keys[short], ids[short]
        self._counts.resize(len(self._ids), refcheck=False)
        np.add.at(self._counts, ids, 1)
        return ids

    def __len__(self) -> int:
        return len(self._ids)

    def table(self) -> pa.Table:
        """Return a table with the columns ``word`` (string), ``id`` (int32) and ``count`` (int64), ordered by id."""
        ids = np.arange(len(self._ids), dtype=np.int32)
        words = pa.array(list(self._ids), pa.string())
        return pa.table({"word": words, "id": pa.array(ids), "count": pa.array(self._counts)})


def tokenize(
    texts: Mapping[str, Path], folder: Path, *, block_bytes: int = BLOCK_BYTES, progress: Progress = silent
) -> tuple[dict[str, int], int]:
    """Tokenize texts; write each text's token ids (int32) and ``vocabulary.parquet`` to a folder.

    The texts are read in the given order, line by line with universal newlines. A line's tokens are ``line.split() +
    ["<eos>"]``. A word's id is the number of distinct words before its first appearance. Memory use depends on the
    size of the vocabulary, not on the length of the texts. Return the number of tokens in each split, and the number of
    distinct words.

    Raises
    ------
    InputError
        A text cannot be read or is not UTF-8.
    """
    vocabulary = Vocabulary()
    total = sum(path.stat().st_size for path in texts.values())
    done = 0
    lengths = dict.fromkeys(texts, 0)
    for split, path in texts.items():
        with ColumnWriter(folder, split, _COLUMN, "<i4") as column:
            for block in read_blocks(path, block_bytes):
                column.append(vocabulary.encode(block))
                done += len(block)
                progress(min(done, total), total, "B")
        lengths[split] = column.length
    pq.write_table(vocabulary.table(), folder / VOCABULARY_FILE, compression="zstd", use_dictionary=False)
    return lengths, len(vocabulary)


def read_blocks(path: Path, block_bytes: int) -> Iterator[bytes]:
    r"""Yield a text in blocks that never end inside a word or inside ``\r\n``; add a final newline if necessary.

    Raises
    ------
    InputError
        The file cannot be read or is not UTF-8; the message contains the offset of the first invalid byte.
    """
    offset = 0
    rest = last = b""
    try:
        with path.open("rb") as stream:
            while read := stream.read(block_bytes):
                text = rest + read
                end = max(text.rfind(b" "), text.rfind(b"\n")) + 1
                block, rest, last = text[:end], text[end:], text[-1:]
                _check_utf8(path, block, offset)
                yield block
                offset += len(block)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.", hint="Check the path and the file's permissions."
        ) from error
    _check_utf8(path, rest, offset)
    yield rest if last in b"\r\n" else rest + b"\n"


def _check_utf8(path: Path, text: bytes, offset: int) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not valid UTF-8 at byte {offset + error.start} (0x{text[error.start]:02x}: {error.reason}).",
            hint="Convert the text to UTF-8, for example with iconv.",
        ) from error


def _find_words(text: bytes) -> npt.NDArray[np.int64]:
    """Return the start position of each word, int64 [words]."""
    data = np.frombuffer(text, dtype=np.uint8)
    # The ASCII whitespace characters have the codes 9 to 13 and 28 to 32. Subtracting 9 or 28 from a smaller uint8 code
    # wraps around to a large number.
    space = (data - np.uint8(9) < 5) | (data - np.uint8(28) < 5)
    return np.flatnonzero(space[:-1] > space[1:]) + 1


def _keys(text: bytes, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return a 16-byte key for each word, uint64 [words, 2].

    A key contains the first 16 bytes of a span, which is a word with its trailing white space. Shorter spans are padded
    with zeros. If a word has at most 15 bytes, its key contains white space and is unique. Longer words with the same
    first 16 bytes have the same key.
    """
    windows = np.ndarray(len(text) + 1, f"V{_KEY_BYTES}", text + bytes(_KEY_BYTES), strides=(1,))
    return windows[begins].view(np.uint64).reshape(-1, 2) & _MASKS.take(ends - begins, axis=0, mode="clip")
