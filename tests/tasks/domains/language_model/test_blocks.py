from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InputError
from tasks.domains.language_model import blocks
from tasks.domains.language_model.blocks import ASCII_SPACE, read_blocks

ONE_BYTE_SPACE = {bytes([byte]) for byte in b"\t\n\x0b\x0c\x1c\x1d\x1e\x1f "}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks") / "text.txt"


def first_wrong_byte(content: bytes) -> int | None:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def refusal(path: Path, block_bytes: int) -> str:
    with pytest.raises(InputError) as refused:
        list(read_blocks(path, block_bytes))
    return str(refused.value)


def test_white_space_is_what_str_split_splits_at_over_all_code_points() -> None:
    texts = [f"a{chr(code)}b" for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    plain = blocks._with_plain_space(" | ".join(texts).encode()).split(b" | ")
    separated = [[text, made] for text, made in zip(texts, plain, strict=True) if made != text.encode()]
    assert all(len(text.split()) == 2 and made.split() == [b"a", b"b"] for text, made in separated)
    others = set(texts) - {text for text, _ in separated}
    assert {text[1].encode() for text in others if len(text.split()) == 2} == ONE_BYTE_SPACE


@given(content=st.binary(max_size=60), block_bytes=st.integers(1, 20))
def test_exactly_invalid_utf8_is_refused_with_the_offset_that_python_gives(
    text: Path, content: bytes, block_bytes: int
) -> None:
    text.write_bytes(content)
    wrong_byte = first_wrong_byte(content)
    if wrong_byte is None:
        list(read_blocks(text, block_bytes))
    else:
        message = refusal(text, block_bytes)
        assert str(text) in message
        assert f"at byte {wrong_byte} (" in message


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x80",
        b"\xc0\xaf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\xff",
        b"\xe2\x80",
    ],
    ids=bytes.hex,
)
@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5, 1000])
def test_overlong_surrogate_cut_and_stray_bytes_are_refused_where_they_stand(
    text: Path, wrong: bytes, block_bytes: int
) -> None:
    text.write_bytes("é word ".encode() + wrong)
    assert "at byte 8 (" in refusal(text, block_bytes)


@given(
    content=st.text(st.sampled_from("ab \n\r\t\u00a0\u2028é€😀"), max_size=40),
    block_bytes=st.integers(1, 20),
)
def test_blocks_end_in_white_space_and_keep_every_word_whole(text: Path, content: str, block_bytes: int) -> None:
    text.write_bytes(content.encode())
    found = list(read_blocks(text, block_bytes))
    assert all(block[-1] in ASCII_SPACE and b"\r" not in block for block in found)
    assert [word for block in found for word in block.decode().split()] == content.split()
    assert (b"".join(found)[-1:] == b"\n") == bool(content)


def test_a_text_without_white_space_is_one_block(text: Path) -> None:
    text.write_bytes(b"x" * 10_000)
    assert list(read_blocks(text, 7)) == [b"x" * 10_000 + b"\n"]


def test_an_empty_text_has_no_blocks(text: Path) -> None:
    text.write_bytes(b"")
    assert list(read_blocks(text)) == []


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.txt") in refusal(tmp_path / "none.txt", 10)
