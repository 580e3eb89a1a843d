"""Tokenization of a corpus: ``line.split() + ["<eos>"]``, ids in order of first appearance.

How it is made fast: the spans of words are found by NumPy over the raw bytes, Arrow's hash table gives each distinct
span of a block a code in order of first appearance, and only those few distinct spans reach a Python dictionary.
Blocks are independent until that point, so they are encoded on several threads (NumPy and Arrow release the
interpreter's lock) and joined in order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError
from tasks.prepare.blocks import ASCII_SPACE, BLOCK_BYTES, IS_SPACE, read_blocks
from tasks.progress import Progress, silent

END_OF_SENTENCE = "<eos>"
VOCABULARY_FILE = "vocabulary.parquet"

_END = END_OF_SENTENCE.encode()
_NEW_LINE = ord("\n")
_LONGEST_BLOCK = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block as codes (int32 [tokens]) into its distinct spans, which are in order of first appearance."""

    codes: npt.NDArray[np.int32]
    spans: list[bytes]
    size: int


class Vocabulary(dict[bytes, int]):
    """Words to ids; a word that is not there yet gets the next id when it is asked for."""

    def __missing__(self, word: bytes) -> int:
        index = len(self)
        self[word] = index
        return index


class _Counts:
    """How often each id occurred; grows with the vocabulary."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << 16, dtype=np.int64)

    def add(self, ids: npt.NDArray[np.int32], times: npt.NDArray[np.int64], words: int) -> None:
        if words > len(self._counts):
            self._counts = np.concatenate((self._counts, np.zeros(max(words, len(self._counts)), dtype=np.int64)))
        # Several spans may be one word (other white space behind it), so plain indexing would lose some.
        np.add.at(self._counts, ids, times)

    def of(self, words: int) -> npt.NDArray[np.int64]:
        return self._counts[:words]


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
    vocabulary, counts = Vocabulary(), _Counts()
    total = sum(path.stat().st_size for path in texts.values())
    done = 0
    lengths = {}
    with ThreadPoolExecutor(threads or min(2, os.cpu_count() or 1), thread_name_prefix="tokenize") as pool:
        for split, path in texts.items():
            with NpyWriter(folder / f"{split}.npy") as writer:
                for block in _encoded(pool, read_blocks(path, block_bytes)):
                    writer.append(_ids(block, vocabulary, counts))
                    done += block.size
                    progress(min(done, total), total, "B")
            lengths[split] = writer.length
    _write_vocabulary(folder / VOCABULARY_FILE, vocabulary, counts.of(len(vocabulary)))
    return lengths


def encode_block(block: bytes) -> EncodedBlock:
    r"""Find the spans of a block and number the distinct ones.

    A span is a word with the white space after it, or a ``\n`` with the other white space after it, so that the
    offsets of an Arrow array over the block's own bytes describe them and no byte is copied.
    """
    if len(block) > _LONGEST_BLOCK:
        raise InputError(f"A word of the text is longer than {_LONGEST_BLOCK} bytes.", hint="Is this a text file?")
    data = np.frombuffer(block, dtype=np.uint8)
    space = IS_SPACE[data]
    begins = np.empty(len(data), dtype=np.bool_)
    begins[0] = not space[0]
    np.greater(space[:-1], space[1:], out=begins[1:])
    begins |= data == _NEW_LINE
    offsets = np.append(np.flatnonzero(begins), len(data)).astype(np.int32)
    spans = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.data), pa.py_buffer(block)]
    ).dictionary_encode()
    return EncodedBlock(spans.indices.to_numpy(), cast(list[bytes], spans.dictionary.to_pylist()), len(block))


def _encoded(pool: ThreadPoolExecutor, blocks: Iterable[bytes]) -> Iterator[EncodedBlock]:
    """Encode blocks on the pool, in order, with no more of them in memory than keep it busy."""
    ahead = pool._max_workers + 1
    waiting: deque[Future[EncodedBlock]] = deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(encode_block, block))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _ids(block: EncodedBlock, vocabulary: Vocabulary, counts: _Counts) -> npt.NDArray[np.int32]:
    # Spans are in order of first appearance, so asking in their order gives ids in that order.
    ids = np.fromiter(
        (vocabulary[span.rstrip(ASCII_SPACE) or _END] for span in block.spans), dtype=np.int32, count=len(block.spans)
    )
    counts.add(ids, np.bincount(block.codes, minlength=len(ids)), len(vocabulary))
    return ids[block.codes]


def _write_vocabulary(path: Path, vocabulary: Vocabulary, counts: npt.NDArray[np.int64]) -> None:
    table = pa.table(
        {
            "word": pa.array(vocabulary, pa.binary()).cast(pa.string()),
            "id": pa.array(np.arange(len(vocabulary), dtype=np.int32)),
            "count": pa.array(counts),
        }
    )
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


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
