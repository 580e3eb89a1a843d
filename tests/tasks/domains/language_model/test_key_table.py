from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.domains.language_model.key_table import KeyTable

INTEGERS = st.one_of(st.integers(1, 8), st.integers(1, 2**64 - 1), st.sampled_from([1 << 56, 2 << 56, 1 << 63]))


def key_of(keys: Sequence[tuple[int, ...]], width: int) -> tuple[npt.NDArray[np.uint64], ...]:
    return tuple(np.array([key[number] for key in keys], dtype=np.uint64) for number in range(width))


def held(table: KeyTable, keys: Sequence[tuple[int, ...]], width: int) -> dict[tuple[int, ...], int]:
    found = table.find(key_of(keys, width))
    missing = set(found.missing.tolist())
    return {key: int(found.ids[at]) for at, key in enumerate(keys) if at not in missing}


def add(table: KeyTable, keys: Sequence[tuple[int, ...]], ids: Mapping[Any, int], width: int) -> None:
    key = key_of(keys, width)
    found = table.find(key)
    table.add(key, found, np.array([ids[keys[at]] for at in found.missing.tolist()], dtype=np.int32))


@pytest.mark.parametrize("width", [1, 2, 4])
@given(data=st.data())
def test_what_a_table_holds_is_what_was_added(width: int, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.tuples(*[INTEGERS] * width), max_size=30))
    ids = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    table = KeyTable(width)
    for part in (keys[at : at + 7] for at in range(0, len(keys), 7)):
        assert held(table, part, width).items() <= ids.items()
        add(table, part, ids, width)
    assert held(table, keys, width).items() <= ids.items()


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_table_grows_and_keeps_most_of_what_was_added(width: int) -> None:
    values = np.random.default_rng(7).integers(1, 1 << 63, (100_000, width)).tolist()
    keys = [tuple(value) for value in values]
    ids = {key: number for number, key in enumerate(keys)}
    table = KeyTable(width)
    for part in 2 * [keys[at : at + 5_000] for at in range(0, len(keys), 5_000)]:
        add(table, part, ids, width)
    known = held(table, keys, width)
    assert known.items() <= ids.items()
    assert len(known) > 0.8 * len(keys)


def test_the_first_key_of_a_slot_keeps_it() -> None:
    keys = [(value,) for value in range(1, 200_000)]
    ids = {key: number for number, key in enumerate(keys)}
    table = KeyTable(1)
    add(table, keys[:1000], ids, 1)
    before = held(table, keys[:1000], 1)
    add(table, keys[1000:3000], ids, 1)
    assert held(table, keys[:1000], 1) == before


def test_zeros_are_never_missing_and_never_held() -> None:
    table = KeyTable(2)
    zeros = key_of([(0, 0)] * 3, 2)
    found = table.find(zeros)
    assert not len(found.missing)
    table.add(zeros, found, np.zeros(0, dtype=np.int32))
    add(table, [(5, 6)], {(5, 6): 9}, 2)
    assert not len(table.find(zeros).missing)
