from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.domains.language_model.blocks import ASCII_SPACE
from tasks.domains.language_model.spans import WIDTHS, find_spans

PIECES = [b"a", b"bc", b"\0", b"seven__", b"eight___", b" ", b"\n", b"\t", b"\x1c", b"\xc3\xa9"]
BLOCKS = st.lists(st.sampled_from(PIECES), min_size=1).map(lambda pieces: b"".join([*pieces, b"\n"]))


def spans_of(block: bytes) -> list[bytes]:
    found = find_spans(block)
    return found.text(np.arange(len(found.begins)))


def keys_of(block: bytes) -> list[tuple[int, ...] | None]:
    """The key of each span, none for those without one; a span has no more than one key."""
    found = find_spans(block)
    keys: list[tuple[int, ...] | None] = [None] * len(found.begins)
    for group in found.groups:
        for at, *key in zip(group.at.tolist(), *(part.tolist() for part in group.key), strict=True):
            if any(key):
                assert keys[at] is None
                keys[at] = tuple(key)
    assert [at for at, key in enumerate(keys) if key is None] == found.others.tolist()
    return keys


def key_of(span: bytes) -> tuple[int, ...] | None:
    if span.endswith(b"\0") or len(span) > 8 * max(WIDTHS):
        return None
    width = next(width for width in WIDTHS if len(span) <= 8 * width)
    return tuple(int.from_bytes(span[8 * number : 8 * number + 8], "little") for number in range(width))


def test_spans_are_words_and_line_ends_with_the_white_space_behind_them() -> None:
    assert spans_of(b"  b a b\n  a\n\n") == [b"b ", b"a ", b"b", b"\n  ", b"a", b"\n", b"\n"]


def test_a_block_of_white_space_has_no_spans_but_its_line_ends() -> None:
    assert spans_of(b" \t ") == []
    assert spans_of(b" \n ") == [b"\n "]


@pytest.mark.parametrize("length", range(1, 40))
def test_words_of_every_length_come_back_at_the_end_of_a_block_too(length: int) -> None:
    block = b"x " + b"y" * length + b" "
    assert spans_of(block) == [b"x ", b"y" * length + b" "]
    assert keys_of(block) == [key_of(span) for span in spans_of(block)]


@pytest.mark.parametrize("before", range(9))
def test_keys_do_not_depend_on_where_a_span_stands_or_what_follows(before: int) -> None:
    words = [b"w" * length + b"\n" for length in range(2, 35)]
    block = b"a" * before + b" " + b"".join(words) + b"~" * 40 + b"\n"
    assert keys_of(block) == [key_of(span) for span in spans_of(block)]


def test_zero_bytes_tell_words_apart() -> None:
    block = b"a a\0 a\0\0 \0a \0 a\na\0\n\0\n"
    assert spans_of(block) == [b"a ", b"a\0 ", b"a\0\0 ", b"\0a ", b"\0 ", b"a", b"\n", b"a\0", b"\n", b"\0", b"\n"]
    assert keys_of(block) == [key_of(span) for span in spans_of(block)]


@given(BLOCKS)
def test_spans_partition_the_block_after_its_first_white_space(block: bytes) -> None:
    spans = spans_of(block)
    assert block.endswith(b"".join(spans))
    assert block[: len(block) - len(b"".join(spans))].strip(ASCII_SPACE) == b""
    assert all(span[-1] in ASCII_SPACE or following[:1] == b"\n" for span, following in pairwise(spans))


@given(BLOCKS)
def test_keys_are_the_bytes_of_the_spans(block: bytes) -> None:
    assert keys_of(block) == [key_of(span) for span in spans_of(block)]


@given(BLOCKS, st.data())
def test_text_gives_the_wanted_spans(block: bytes, data: st.DataObject) -> None:
    spans = spans_of(block)
    wanted = sorted(data.draw(st.sets(st.sampled_from(range(len(spans))))))
    assert find_spans(block).text(np.array(wanted, dtype=np.int64)) == [spans[at] for at in wanted]
