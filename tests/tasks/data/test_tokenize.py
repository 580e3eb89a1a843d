from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage.errors import InputError
from tasks.data import corpus as module
from tasks.data.corpus import VOCABULARY_FILE, Vocabulary, read_blocks, tokenize
from tests.tasks.data.plain import plain_tokens

# Everything at which str.split, str.splitlines or universal newlines split, and some that look as if they did.
AWKWARD = (
    " \n\r\t\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000"
    "\u180e\u200b\u200c\u2060\ufeff\x00\x08\x1b\x7f\x84\x86\u2007\u2010\u3001"
)
LETTERS = "abé€😀ß漢"
WORDS = st.sampled_from(
    [
        *("a", "the", "<eos>", "<unk>", "twelve_bytes", "exactly8", "more_than_sixteen_bytes", "日本語", "ab\x00"),
        *("just 15 bytes__".replace(" ", "_") + end for end in ("", "_", "__", "___", "\x00")),
    ]
)
PIECES = st.one_of(
    st.sampled_from(AWKWARD), st.sampled_from(LETTERS), WORDS, st.sampled_from(["\r\n", "\n\n", " \r", "  "])
)
TEXTS = st.one_of(st.lists(PIECES, max_size=40).map("".join), st.text(max_size=40))


def check_against_the_definition(contents: list[bytes], folder: Path, **settings: int) -> None:
    texts = {name: folder / f"{name}.txt" for name in ("train", "valid", "test")}
    for path, content in zip(texts.values(), contents, strict=True):
        path.write_bytes(content)
    lengths, distinct = tokenize(texts, folder, **settings)
    expected, words, counts = plain_tokens(texts.values())
    for split, ids in zip(texts, expected, strict=True):
        made = np.load(folder / f"{split}.tokens.npy")
        assert made.dtype == np.int32
        assert made.tolist() == ids
        assert lengths[split] == len(ids)
    table = pq.read_table(folder / VOCABULARY_FILE)
    assert table.column("word").to_pylist() == words
    assert distinct == len(words)
    assert table.column("id").to_pylist() == list(range(len(words)))
    assert table.column("count").to_pylist() == [counts[word] for word in words]


@settings(max_examples=200, deadline=None)
@given(contents=st.tuples(TEXTS, TEXTS, TEXTS), block_bytes=st.integers(1, 30))
@example(contents=("a\r\nb\rc\n\n", "\r\n", "no final newline"), block_bytes=2)
@example(contents=("a\u2028b\x85c\x1cd", " \n\u3000", ""), block_bytes=1)
@example(contents=("<eos> a\n", "\n\n", "\ufeffa"), block_bytes=3)
@pytest.mark.slow
def test_ids_vocabulary_and_counts_are_those_of_the_definition(
    contents: tuple[str, str, str], block_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        encoded = [content.encode("utf-8", "replace") for content in contents]
        check_against_the_definition(encoded, Path(folder), block_bytes=block_bytes)


def test_words_are_split_where_str_split_does_over_all_code_points() -> None:
    text = "a".join(chr(code) for code in (*range(0xD800), *range(0xE000, sys.maxunicode + 1)))
    vocabulary = Vocabulary()
    vocabulary.encode(text.encode())
    words = text.replace("\r", "\n").replace("\n", " <eos> ").split()
    assert vocabulary.table().column("word").to_pylist() == list(dict.fromkeys(words))


@pytest.mark.parametrize("block_bytes", [64, 1000, 4096, 1 << 20])
@pytest.mark.parametrize("slot_bits", [2, 20])
@pytest.mark.slow
def test_a_text_of_many_blocks_and_words_is_that_of_the_definition(
    tmp_path: Path, block_bytes: int, slot_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOT_BITS", slot_bits)
    generator = np.random.default_rng(3)
    words = np.array([f"w{rank:x}{'é' * (rank % 7 == 0)}{'long' * (rank % 5)}" for rank in range(100_000)])
    separators = np.array([" ", "  ", "\n", " \n ", "\r\n", "\u2003", "\t"])
    contents = []
    for size in (20_000, 1_000, 3_000):
        chosen = words[np.minimum(generator.zipf(1.3, size), len(words)) - 1]
        spaces = separators[generator.choice(len(separators), size, p=[0.8, 0.02, 0.08, 0.04, 0.02, 0.02, 0.02])]
        contents.append("".join(np.char.add(chosen, spaces).tolist()).encode())
    check_against_the_definition(contents, tmp_path, block_bytes=block_bytes)


def test_more_words_than_the_cache_has_slots_for_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOT_BITS", 10)
    content = "\n".join(f"w{number}" for number in range(70_000)).encode()
    check_against_the_definition([content, content, b"w1"], tmp_path, block_bytes=50_000)


@pytest.mark.parametrize("behind", [b"\n", b"  ", b" " * 20])
@pytest.mark.slow
def test_long_words_and_words_of_zero_bytes_are_told_apart_in_later_blocks(tmp_path: Path, behind: bytes) -> None:
    words = [start * length + end for start in (b"w", b"\0") for length in range(40) for end in (b"", b"\0", b"\0\0w")]
    content = behind.join([*words, *reversed(words)] * 3)
    check_against_the_definition([content, content, b" ".join(words)], tmp_path, block_bytes=500)


def test_progress_ends_at_the_whole_length(tmp_path: Path) -> None:
    text = tmp_path / "train.txt"
    text.write_bytes(b"some words\n" * 99 + b"some words")
    seen: list[tuple[float, float]] = []
    tokenize({"train": text}, tmp_path, block_bytes=100, progress=lambda *seen_now: seen.append(seen_now[:2]))
    assert seen[-1] == (1099, 1099)
    assert seen == sorted(seen)


def test_a_wrong_byte_in_a_later_split_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"good\n")
    (tmp_path / "test.txt").write_bytes(b"good \xff\n")
    with pytest.raises(InputError, match=r"test\.txt is not valid UTF-8 at byte 5 \(0xff"):
        tokenize({split: tmp_path / f"{split}.txt" for split in ("train", "test")}, tmp_path)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks") / "text.txt"


def refusal(path: Path, block_bytes: int) -> str:
    with pytest.raises(InputError) as refused:
        list(read_blocks(path, block_bytes))
    return str(refused.value)


def first_wrong_byte(content: bytes) -> int | None:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


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
@pytest.mark.slow
def test_overlong_surrogate_cut_and_stray_bytes_are_refused_where_they_stand(
    text: Path, wrong: bytes, block_bytes: int
) -> None:
    text.write_bytes("é word ".encode() + wrong)
    assert "at byte 8 (" in refusal(text, block_bytes)


@given(content=st.text(st.sampled_from("ab \n\r\t\u00a0\u2028é€😀"), max_size=40), block_bytes=st.integers(1, 20))
def test_blocks_end_between_words_and_hold_all_of_the_text(text: Path, content: str, block_bytes: int) -> None:
    text.write_bytes(content.encode())
    blocks = list(read_blocks(text, block_bytes))
    assert all(block.endswith((b" ", b"\n")) for block in blocks[:-1] if block)
    ending = "" if not content or content.endswith(("\n", "\r")) else "\n"
    assert b"".join(blocks).decode() == content + ending


def test_a_text_without_white_space_is_one_block(text: Path) -> None:
    text.write_bytes(b"x" * 10_000)
    assert b"".join(read_blocks(text, 7)) == b"x" * 10_000 + b"\n"


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.txt") in refusal(tmp_path / "none.txt", 10)
