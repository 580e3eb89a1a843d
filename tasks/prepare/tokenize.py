"""Tokenization of a corpus: ``line.split() + ["<eos>"]``, ids in order of first appearance.

How it is made fast: the spans of words are found by NumPy over the raw bytes, Arrow's hash table gives each distinct
span of a block a code in order of first appearance, and only those few distinct spans reach a Python dictionary.
Blocks are independent until that point, so their spans are found on several threads (NumPy and Arrow release the
interpreter's lock) and joined in order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.prepare.blocks import ASCII_SPACE, BLOCK_BYTES, read_blocks
from tasks.prepare.spans import LONG, Spans, bytes_of, find_spans, first_positions
from tasks.progress import Progress, silent

END_OF_SENTENCE = "<eos>"
VOCABULARY_FILE = "vocabulary.parquet"

_END = END_OF_SENTENCE.encode()
_UNKNOWN = -2


class Vocabulary:
    """Words and their ids, which are given in order of first appearance, with the number of occurrences."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        # A shortcut from the integer of a short span to the id of its word; long spans have the id of no word.
        self._short: dict[int, int] = {LONG: -1}
        self._counts = np.zeros(1 << 16, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, spans: Spans) -> npt.NDArray[np.int32]:
        """The id of each span of a block (int32 [spans]); words that are not there yet get the next ids."""
        keys = spans.keys.tolist()
        words = [span.rstrip(ASCII_SPACE) or _END for span in spans.long_spans]
        short = np.fromiter(map(self._short.get, keys, repeat(_UNKNOWN)), np.int32, len(keys))
        long = np.fromiter(map(self._ids.get, words, repeat(_UNKNOWN)), np.int32, len(words))
        self._add_new(spans, keys, words, short, long)
        ids = short[spans.codes]
        ids[spans.long_at] = long[spans.long_codes]
        self._count(ids)
        return ids

    def _add_new(
        self,
        spans: Spans,
        keys: list[int],
        words: list[bytes],
        short: npt.NDArray[np.int32],
        long: npt.NDArray[np.int32],
    ) -> None:
        """Put ids in the place of the unknown ones in `short` and `long`, in the order in which the spans appear."""
        new_short, new_long = np.flatnonzero(short == _UNKNOWN), np.flatnonzero(long == _UNKNOWN)
        if not len(new_short) + len(new_long):
            return
        places = np.concatenate(
            (first_positions(spans.codes, new_short), spans.long_at[first_positions(spans.long_codes, new_long)])
        )
        ids = self._ids
        for code in np.concatenate((new_short, new_long + len(keys)))[np.argsort(places)].tolist():
            if code < len(keys):
                key = keys[code]
                word = bytes_of(key).rstrip(ASCII_SPACE) or _END
                short[code] = self._short[key] = ids.setdefault(word, len(ids))
            else:
                long[code - len(keys)] = ids.setdefault(words[code - len(keys)], len(ids))

    def table(self) -> pa.Table:
        """The words in order of their ids: word (string), id (int32), count (int64)."""
        return pa.table(
            {
                "word": pa.array(self._ids, pa.binary()).cast(pa.string()),
                "id": pa.array(np.arange(len(self), dtype=np.int32)),
                "count": pa.array(self._counts[: len(self)]),
            }
        )

    def _count(self, ids: npt.NDArray[np.int32]) -> None:
        if len(self) > len(self._counts):
            self._counts = np.concatenate((self._counts, np.zeros(max(len(self), len(self._counts)), dtype=np.int64)))
        self._counts[: len(self)] += np.bincount(ids, minlength=len(self))


def tokenize(
    texts: Mapping[str, Path],
    folder: Path,
    *,
    block_bytes: int = BLOCK_BYTES,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write ``<split>.npy`` (int32 [tokens]) for each text and ``vocabulary.parquet`` (word, id, count).

    Equal to this definition, for every input: go through the texts in the given order and through their lines with
    universal newlines; a line's tokens are ``line.split() + ["<eos>"]``; a word's id is the number of distinct words
    before it. Memory does not depend on the length of the texts, only on the vocabulary.

    Parameters
    ----------
    texts
        UTF-8 files by name of the split; their order is the order in which ids are given.
    folder
        An existing folder to write to.
    block_bytes
        How much text is encoded at a time.
    threads
        How many blocks are encoded at once; by default two, or one where there is only one core.

    Returns
    -------
    dict
        The number of tokens of each split.

    Raises
    ------
    InputError
        A text cannot be read or is not UTF-8.
    """
    vocabulary = Vocabulary()
    total = sum(path.stat().st_size for path in texts.values())
    done = 0
    lengths = {}
    threads = threads or min(2, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="tokenize") as pool:
        for split, path in texts.items():
            with NpyWriter(folder / f"{split}.npy") as writer:
                for spans in _in_order(pool, threads, read_blocks(path, block_bytes)):
                    writer.append(vocabulary.ids(spans))
                    done += spans.size
                    progress(min(done, total), total, "B")
            lengths[split] = writer.length
    pq.write_table(vocabulary.table(), folder / VOCABULARY_FILE, compression="zstd", use_dictionary=False)
    return lengths


def _in_order(pool: ThreadPoolExecutor, threads: int, blocks: Iterable[bytes]) -> Iterator[Spans]:
    """Find the spans of blocks on the pool, with no more of them in memory than keep it busy."""
    waiting: deque[Future[Spans]] = deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(find_spans, block))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class NpyWriter:
    """Appends int32 values to a .npy file whose length is known only at the end."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")
        self.length = 0
        self._write_header()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, *_: object) -> None:
        # NumPy pads headers so that a larger shape fits into the same bytes.
        self._stream.seek(0)
        self._write_header()
        self._stream.close()

    def append(self, values: npt.NDArray[np.int32]) -> None:
        """Write `values` (int32 [n]) behind those that are there."""
        self._stream.write(values.data)
        self.length += len(values)

    def _write_header(self) -> None:
        np.lib.format.write_array_header_1_0(
            self._stream, {"descr": "<i4", "fortran_order": False, "shape": (self.length,)}
        )
