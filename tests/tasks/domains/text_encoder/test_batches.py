from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.samples import Column
from tasks.domains.text_encoder.domain import Texts, bucket_of

LENGTHS = st.lists(st.integers(1, 130), min_size=1, max_size=60)


def texts_of(lengths: list[int]) -> Texts:
    ids = torch.arange(1, sum(lengths) + 1, dtype=torch.int32)
    return Texts(Column(ids, tuple((length,) for length in lengths)), padding=0)


@given(LENGTHS, st.integers(1, 9))
@pytest.mark.slow
def test_every_text_is_complete_and_in_one_batch(lengths: list[int], size: int) -> None:
    texts = texts_of(lengths)
    seen = []
    for rows, width in texts.buckets(size):
        assert len(rows) <= size
        ids, mask = texts.padded(rows, width)
        assert ids.shape == mask.shape == (len(rows), width)
        for row, tokens, there in zip(rows, ids, mask, strict=True):
            assert tokens[: lengths[row]].tolist() == texts.ids[row].tolist()
            assert there.tolist() == [1] * lengths[row] + [0] * (width - lengths[row])
            assert not tokens[lengths[row] :].any()
        seen += rows
    assert sorted(seen) == list(range(len(lengths)))


@given(LENGTHS)
@pytest.mark.slow
def test_there_are_few_widths_and_none_is_twice_what_is_needed(lengths: list[int]) -> None:
    longest = max(lengths)
    widths = {bucket_of(length, longest) for length in lengths}
    assert len(widths) <= 5  # 16, 32, 64, 128 and the longest
    for length in lengths:
        assert length <= bucket_of(length, longest) <= max(16, 2 * length - 2, length)
