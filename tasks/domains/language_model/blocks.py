"""Text files as blocks of whole words: UTF-8 checked, every white space ASCII, every line end ``\\n``.

A block is cut after white space, so that words never straddle blocks and blocks can be encoded independently. Nothing
here holds more than one block and one word.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.errors import InputError

BLOCK_BYTES = 256 << 10
FIRST_BYTES = 16 << 10
ASCII_SPACE = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "

# The multi-byte code points at which str.split() splits, as UTF-8: U+0085, U+00A0; U+1680, U+2000 to U+200A, U+2028,
# U+2029, U+202F, U+205F, U+3000. tests/tasks/prepare/test_blocks.py holds this against str.isspace for all code points.
_TWO_BYTES = (0xC285, 0xC2A0)
_THREE_BYTES = (0xE19A80, *range(0xE28080, 0xE2808B), 0xE280A8, 0xE280A9, 0xE280AF, 0xE2819F, 0xE38080)
_LEADS = sorted({0xC2, *(code >> 16 for code in _THREE_BYTES)})
_MAY_LEAD = np.isin(np.arange(256), _LEADS)


def read_blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    r"""Yield a text in blocks that end in white space, the last one in ``\n``.

    Parameters
    ----------
    path
        A UTF-8 text with any mixture of ``\n``, ``\r\n`` and ``\r`` as line ends.
    block_bytes
        Most bytes read at a time; blocks are about as long, longer only where one word is. The first ones are short
        and each twice as long as the one before: nearly all their words are new, and known from the next block on.

    Yields
    ------
    bytes
        Whole words with white space between them: multi-byte white space became as many spaces, ``\r\n`` and ``\r``
        became ``\n``, and a missing last line end was added. The other bytes are the file's own.

    Raises
    ------
    InputError
        The file cannot be read, or is not UTF-8 (with the offset of the first wrong byte).
    """
    pending: list[bytes] = []
    last = b""
    for text in _read_characters(path, block_bytes):
        plain = _with_plain_space(text)
        cut = _after_last_space(plain)
        if cut:
            yield b"".join((*pending, plain[:cut]))
            pending = []
        if cut < len(plain):
            pending.append(plain[cut:])
        last = plain[-1:]
    if last not in (b"", b"\n"):
        yield b"".join((*pending, b"\n"))


def _read_characters(path: Path, block_bytes: int) -> Iterator[bytes]:
    r"""Pieces of the file that end between characters and never between ``\r`` and ``\n``; checked to be UTF-8."""
    try:
        with path.open("rb") as stream:
            held, offset = b"", 0
            size = min(block_bytes, FIRST_BYTES)
            while read := stream.read(size):
                size = min(block_bytes, 2 * size)
                piece = held + read
                whole = len(piece) - _unfinished(piece)
                held, piece = piece[whole:], piece[:whole]
                _check_utf8(path, piece, offset)
                offset += whole
                if piece:
                    yield piece
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error
    _check_utf8(path, held, offset)
    if held:
        yield held


def _unfinished(piece: bytes) -> int:
    r"""How many bytes at the end may belong with the next piece: a begun character, or a ``\r``."""
    if piece.endswith(b"\r"):
        return 1
    for length in range(1, min(3, len(piece)) + 1):
        byte = piece[-length]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return length if needed > length else 0
    return 0


def _check_utf8(path: Path, piece: bytes, offset: int) -> None:
    # Arrow checks several times faster than bytes.decode; only a refusal needs Python, to say where.
    array = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(np.array([0, len(piece)], dtype=np.int64).data), pa.py_buffer(piece)]
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as refusal:
        try:
            piece.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: not UTF-8 at byte {offset + error.start} (0x{piece[error.start]:02x}: {error.reason}).",
                hint="Convert the text to UTF-8, for instance with iconv.",
            ) from refusal
        raise


def _with_plain_space(piece: bytes) -> bytes:
    if not piece.isascii() and any(lead in piece for lead in _LEADS):
        piece = _without_wide_space(piece)
    if b"\r" in piece:
        piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return piece


def _without_wide_space(piece: bytes) -> bytes:
    """Overwrite multi-byte white space by as many spaces."""
    data = np.frombuffer(piece, dtype=np.uint8)
    leads = np.flatnonzero(data >= min(_LEADS))
    leads = leads[_MAY_LEAD.take(data.take(leads))]
    if not leads.size:
        return piece
    pairs = data.take(leads).astype(np.int32) << 8 | data.take(leads + 1)
    two = leads[np.isin(pairs, _TWO_BYTES)]
    may = np.isin(pairs, [code >> 8 for code in _THREE_BYTES])
    three = leads[may]
    three = three[np.isin(pairs[may] << 8 | data.take(three + 2), _THREE_BYTES)]
    if not two.size and not three.size:
        return piece
    data = data.copy()
    for start, width in ((two, 2), (three, 3)):
        for step in range(width):
            data[start + step] = ord(" ")
    return data.tobytes()


def _after_last_space(piece: bytes) -> int:
    """Where the last white space ends; 0 where there is none."""
    # Nearly every text has a blank within a word's length of the end.
    tail = max(0, len(piece) - 256)
    found = max(piece.rfind(byte, tail) for byte in _SPACES)
    if found < 0 and tail:
        found = max(piece.rfind(byte, 0, tail) for byte in _SPACES)
    return found + 1


_SPACES = tuple(bytes([byte]) for byte in ASCII_SPACE)
