"""In which order the blocks of a launch are timed."""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_rounds(names: Sequence[str], rounds: int, seed: int) -> list[tuple[str, ...]]:
    """Order the subjects within each round at random, every second round being the mirror image of the one before.

    In such a pair (A B B A for two subjects) every subject has the same mean position, so that a drift that is linear
    over the pair, as of a processor that heats up, favours nobody.

    Parameters
    ----------
    names
        Subjects, all different.
    rounds
        Number of rounds; an odd number leaves the last one without its mirror image.
    seed
        Equal seeds give equal orders.
    """
    generator = random.Random(seed)
    order: list[tuple[str, ...]] = []
    for index in range(rounds):
        if index % 2:
            order.append(order[-1][::-1])
        else:
            order.append(tuple(generator.sample(list(names), len(names))))
    return order
