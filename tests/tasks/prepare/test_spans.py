from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.prepare.blocks import ASCII_SPACE
from tasks.prepare.spans import LONG, bytes_of, find_spans, first_positions


def spans_of(block: bytes) -> list[bytes]:
    found = find_spans(block)
    spans = [bytes_of(key) for key in found.keys.tolist()]
    listed = [spans[code] for code in found.codes]
    for position, code in zip(found.long_at, found.long_codes, strict=True):
        assert found.keys[found.codes[position]] == LONG
        listed[position] = found.long_spans[code]
    return listed


def test_spans_are_words_and_line_ends_with_the_white_space_behind_them() -> None:
    assert spans_of(b"  b a b\n  a\n\n") == [b"b ", b"a ", b"b", b"\n  ", b"a", b"\n", b"\n"]


def test_distinct_spans_are_numbered_in_order_of_first_appearance() -> None:
    found = find_spans(b"b a b a fifteen_letters b sixteen__letters fifteen_letters \n")
    assert [bytes_of(key) for key in found.keys.tolist()] == [b"b ", b"a ", b"", b"\n"]
    assert found.codes.tolist() == [0, 1, 0, 1, 2, 0, 2, 2, 3]
    assert found.long_spans == [b"fifteen_letters ", b"sixteen__letters "]
    assert found.long_codes.tolist() == [0, 1, 0]


@pytest.mark.parametrize("length", range(1, 20))
def test_words_of_every_length_come_back_at_the_end_of_a_block_too(length: int) -> None:
    assert spans_of(b"x " + b"y" * length + b" ") == [b"x ", b"y" * length + b" "]


def test_zero_bytes_tell_words_apart() -> None:
    block = b"a a\0 a\0\0 \0a \0 a\na\0\n\0\n"
    assert spans_of(block) == [b"a ", b"a\0 ", b"a\0\0 ", b"\0a ", b"\0 ", b"a", b"\n", b"a\0", b"\n", b"\0", b"\n"]


@given(
    st.lists(
        st.sampled_from([b"a", b"bc", b"\0", b"seven__", b"eight___", b" ", b"\n", b"\t", b"\x1c", b"\xc3\xa9"]),
        min_size=1,
    )
)
def test_spans_partition_the_block_after_its_first_white_space(pieces: list[bytes]) -> None:
    block = b"".join([*pieces, b"\n"])
    spans = spans_of(block)
    assert block.endswith(b"".join(spans))
    assert block[: len(block) - len(b"".join(spans))].strip(ASCII_SPACE) == b""
    assert all(span[-1] in ASCII_SPACE or following[:1] == b"\n" for span, following in pairwise(spans))


@given(st.lists(st.integers(0, 5)))
def test_first_positions_are_those_of_list_index(values: list[int]) -> None:
    order = list(dict.fromkeys(values))
    codes = np.array([order.index(value) for value in values], dtype=np.int32)
    found = first_positions(codes, np.arange(len(order)))
    assert found.tolist() == [values.index(value) for value in order]
