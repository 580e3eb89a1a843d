from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.data import corpus
from tasks.data.corpus import tokenize

# Everything at which str.split, str.splitlines or universal newlines split, and some that look as if they did.
AWKWARD = (
    " \n\r\t\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2005\u200a\u2028\u2029\u202f\u205f\u3000"
    "\u180e\u200b\u200c\u2060\ufeff\x00\x08\x1b\x7f\x84\x86\u2007\u2010\u3001"
)
PIECES = st.one_of(st.sampled_from(AWKWARD), st.sampled_from(["a", "é", "日本語", "<eos>", "\r\n", "\n\n", " \r"]))
TEXTS = st.lists(PIECES, max_size=40).map("".join)


@settings(max_examples=200, deadline=None)
@given(contents=st.tuples(TEXTS, TEXTS, TEXTS), block=st.integers(1, 30))
@example(contents=("a\r\nb\rc\n\n", "\r\n", "no final newline"), block=2)
@example(contents=("a\u2028b\x85c\x1cd", " \n\u3000", ""), block=1)
@pytest.mark.slow
def test_a_words_id_is_the_number_of_words_before_its_first_appearance(
    contents: tuple[str, str, str], block: int
) -> None:
    ids: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_BLOCK_CHARACTERS", block)
        texts = {name: Path(folder, f"{name}.txt") for name in corpus.SPLITS}
        for path, content in zip(texts.values(), contents, strict=True):
            path.write_text(content, encoding="utf-8", newline="")
        lengths, distinct = tokenize(texts, Path(folder))
        for split, path in texts.items():
            with path.open(encoding="utf-8") as lines:
                expected = [ids.setdefault(word, len(ids)) for line in lines for word in [*line.split(), "<eos>"]]
            tokens = np.load(Path(folder, f"{split}.tokens.npy"))
            assert tokens.dtype == np.int32
            assert tokens.tolist() == expected
            assert lengths[split] == len(expected)
        assert pq.read_table(Path(folder, "vocabulary.parquet")).column("word").to_pylist() == list(ids)
        assert distinct == len(ids)
