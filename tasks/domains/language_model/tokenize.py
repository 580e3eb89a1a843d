"""Tokenization of a corpus: ``line.split() + ["<eos>"]``, ids in order of first appearance.

How it is made fast: NumPy finds the spans of words over the raw bytes of a block and looks all of them up at once in a
table of those seen before. Only what the table does not hold, a few spans in a hundred, reaches the definition itself,
which is a line of Python over a dictionary, and is in the table from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.domains.language_model.blocks import ASCII_SPACE, BLOCK_BYTES, read_blocks
from tasks.domains.language_model.key_table import KeyTable
from tasks.domains.language_model.spans import WIDTHS, Spans, find_spans
from tasks.job import Progress, silent

END_OF_SENTENCE = "<eos>"
VOCABULARY_FILE = "vocabulary.parquet"

_END = END_OF_SENTENCE.encode()
_LARGE_BYTES = 30 << 20


class Vocabulary:
    """Words and their ids, which are given in order of first appearance, with the number of occurrences."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._tables = [KeyTable(width) for width in WIDTHS]
        self._counts = np.zeros(1 << 14, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, spans: Spans) -> npt.NDArray[np.int32]:
        """The id of each span of a block (int32 [spans]); words that are not there yet get the next ids."""
        found = [table.find(group.key) for table, group in zip(self._tables, spans.groups, strict=True)]
        ids = found[0].ids
        missing = [found[0].missing]
        for group, known in zip(spans.groups[1:], found[1:], strict=True):
            ids[group.at] = known.ids
            missing.append(group.at.take(known.missing))
        unknown = np.concatenate((*missing, spans.others))
        unknown.sort()
        ids[unknown] = self._by_definition(spans.text(unknown))
        for table, group, known, at in zip(self._tables, spans.groups, found, missing, strict=True):
            table.add(group.key, known, ids.take(at))
        self._count(ids)
        return ids

    def _by_definition(self, spans: list[bytes]) -> list[int]:
        ids = self._ids
        return [ids.setdefault(span.rstrip(ASCII_SPACE) or _END, len(ids)) for span in spans]

    def table(self) -> pa.Table:
        """The words in order of their ids: word (string), id (int32), count (int64)."""
        # Every part of a checked text is UTF-8, so that bytes may be called strings without another check.
        return pa.table(
            {
                "word": pa.array(list(self._ids), pa.binary()).view(pa.string()),
                "id": _column(pa.int32(), np.arange(len(self), dtype=np.int32)),
                "count": _column(pa.int64(), self._counts[: len(self)]),
            }
        )

    def _count(self, ids: npt.NDArray[np.int32]) -> None:
        if len(self) > len(self._counts):
            self._counts = np.concatenate((self._counts, np.zeros(max(len(self), len(self._counts)), dtype=np.int64)))
        np.add.at(self._counts, ids, 1)


def tokenize(
    texts: Mapping[str, Path],
    folder: Path,
    *,
    block_bytes: int = BLOCK_BYTES,
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

    Returns
    -------
    dict
        The number of tokens of each split.

    Raises
    ------
    InputError
        A text cannot be read or is not UTF-8.
    """
    _keep_freed_memory()
    vocabulary = Vocabulary()
    total = sum(path.stat().st_size for path in texts.values())
    done = 0
    lengths = {}
    for split, path in texts.items():
        with NpyWriter(folder / f"{split}.npy") as writer:
            for block in read_blocks(path, block_bytes):
                writer.append(vocabulary.ids(find_spans(block)))
                done += len(block)
                progress(min(done, total), total, "B")
        lengths[split] = writer.length
    pq.write_table(vocabulary.table(), folder / VOCABULARY_FILE, compression="zstd", use_dictionary=False)
    return lengths


def _column(kind: pa.DataType, values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> pa.Array[Any]:
    # pyarrow.array would import numpy.ma to see whether anything is masked: a tenth of the time for a short text.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.data)])


def _keep_freed_memory() -> None:
    """Let the arrays of a block reuse the memory of the last one's, which is a fifth of the time for short texts."""
    # glibc gives freed memory back to the system at once, until a larger block than those in use was freed; every
    # page then costs a fault again. Nothing touches this one, so that it takes no memory itself.
    np.empty(_LARGE_BYTES, dtype=np.uint8)


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
