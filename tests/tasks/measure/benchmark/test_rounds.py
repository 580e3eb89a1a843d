"""A launch's rounds are in balanced order, and those with cold caches end with their time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.measure.benchmark.messages import LaunchOrder, LaunchSpec, Profile
from tasks.measure.benchmark.rounds import Loaded, balanced_rounds, time_cold_rounds

NAMES = st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True)


@given(NAMES, st.integers(1, 6), st.integers())
@pytest.mark.slow
def test_pairs_of_rounds_are_mirror_images(names: list[str], pairs: int, seed: int) -> None:
    order = balanced_rounds(names, 2 * pairs, seed)
    assert len(order) == 2 * pairs
    assert all(sorted(names_of_round) == sorted(names) for names_of_round in order)
    flat = [name for names_of_round in order for name in names_of_round]
    for name in names:
        positions = [index for index, found in enumerate(flat) if found == name]
        # Equal mean positions: a linear drift favours nobody.
        assert sum(positions) / len(positions) == (len(flat) - 1) / 2


def spec(most: int = 6) -> LaunchSpec:
    profile = Profile(name="any", launches=1, rounds=2, budget_s=0, cold_rounds=most)
    return LaunchSpec(subjects=(), loader="", threads=1, profile=profile, seed=1, cold_share=0, spawned_at=0)


def order(cold_rounds: int | None) -> LaunchOrder:
    return LaunchOrder(keys=(), single_calls=0, cold_rounds=cold_rounds)


class Traced:
    """Two subjects and an eviction that write down in which order they are called."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def subjects(self) -> dict[str, Loaded]:
        return {name: Loaded(lambda name=name: self.order.append(name)) for name in ("a", "b")}  # type: ignore[misc]

    def evict(self) -> None:
        self.order.append("evict")


@pytest.mark.slow
def test_every_cold_call_follows_an_eviction_and_pairs_of_rounds_are_mirror_images() -> None:
    traced = Traced()
    times = time_cold_rounds(spec(), order(4), traced.subjects(), traced.evict, 0.0)
    assert traced.order[::2] == ["evict"] * 8
    called = traced.order[1::2]
    assert called[:2] == called[3:1:-1]
    assert called[4:6] == called[7:5:-1]
    assert {name: len(each) for name, each in times.items()} == {"a": 4, "b": 4}
    assert all(seconds >= 0 for each in times.values() for seconds in each)


@given(st.integers(1, 8))
@pytest.mark.slow
def test_the_first_launch_makes_at_least_one_pair_and_at_most_the_profiles_number(most: int) -> None:
    for budget_s, rounds in ((0.0, 2), (3600.0, 2 * most)):
        traced = Traced()
        times = time_cold_rounds(spec(2 * most), order(None), traced.subjects(), traced.evict, budget_s)
        assert {len(each) for each in times.values()} == {rounds}
