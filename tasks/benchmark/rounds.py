"""What a launch times: warm-up, blocks in balanced rounds, single calls, and calls with cold caches."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tasks.benchmark.blocks import (
    no_garbage_collection,
    time_block,
    time_cold_call,
    time_single_calls,
    warm_up,
    warm_up_and_plan,
)
from tasks.benchmark.messages import COPY_SUFFIX, LaunchSpec

if TYPE_CHECKING:
    from tasks.benchmark.launch import Loaded


def balanced_rounds(names: Sequence[str], rounds: int, seed: int) -> list[tuple[str, ...]]:
    """Order the subjects within each round at random, every second round being the mirror image of the one before.

    In such a pair (A B B A for two subjects) every subject has the same mean position, so that a drift that is linear
    over the pair, as of a processor that heats up, favours nobody.
    """
    generator = random.Random(seed)
    order: list[tuple[str, ...]] = []
    for index in range(rounds):
        order.append(order[-1][::-1] if index % 2 else tuple(generator.sample(list(names), len(names))))
    return order


def warm_up_all(spec: LaunchSpec, subjects: Mapping[str, Loaded]) -> dict[str, int]:
    """Warm every subject up; calls per block by subject."""
    profile, calls = spec.profile, dict(spec.calls)
    for name, loaded in subjects.items():
        call = loaded.call
        with loaded.scope():
            if name in calls:
                warm_up(call, profile.warm_up_calls // 2, profile.rewarm_s)
            else:
                calls[name] = warm_up_and_plan(call, profile.warm_up_calls, profile.warm_up_s, profile.block_s)
    return calls


def time_rounds(spec: LaunchSpec, subjects: Mapping[str, Loaded], calls: dict[str, int]) -> dict[str, list[float]]:
    """Seconds per call in each round, by subject."""
    round_s: dict[str, list[float]] = {name: [] for name in subjects}
    for order in balanced_rounds(sorted(subjects), spec.profile.rounds, spec.seed):
        for name in order:
            loaded = subjects[name]
            with loaded.scope():
                round_s[name].append(time_block(loaded.call, calls[name]) / calls[name])
    return round_s


def time_singles(spec: LaunchSpec, subjects: Mapping[str, Loaded]) -> dict[str, list[float]]:
    """Seconds of single calls, by subject; the baseline's copy needs none."""
    profile, single_s = spec.profile, {}
    most = -(-profile.single_calls // profile.launches)
    for name, loaded in subjects.items():
        if not name.endswith(COPY_SUFFIX):
            with loaded.scope():
                single_s[name] = time_single_calls(loaded.call, most, profile.single_s)
    return single_s


def time_cold_rounds(
    spec: LaunchSpec, subjects: Mapping[str, Loaded], evict: Callable[[], None], budget_s: float
) -> dict[str, list[float]]:
    """Seconds of one call with cold caches in each round, by subject.

    The first launch makes pairs of mirrored rounds until `budget_s` is spent, at least one; later ones as many.
    """
    cold_s: dict[str, list[float]] = {name: [] for name in subjects}
    began = time.perf_counter()
    with no_garbage_collection():
        order = balanced_rounds(sorted(subjects), spec.cold_rounds or spec.profile.cold_rounds, spec.seed)
        for index, names in enumerate(order):
            spent = spec.cold_rounds is None and time.perf_counter() - began > budget_s
            if spent and index and index % 2 == 0:
                break
            for name in names:
                loaded = subjects[name]
                with loaded.scope():
                    cold_s[name].append(time_cold_call(loaded.call, evict))
    return cold_s
