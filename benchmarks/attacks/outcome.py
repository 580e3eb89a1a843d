"""What comes of an attack, and the changes of bytes that several begin with."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil

from storage.errors import NightquantError

MORE_BYTES = 2 << 30  # than the process has: stacks of threads and arenas, but no tensor of gigabytes

Outcome = Literal["refused", "harmless", "through"]
Attack = Callable[[random.Random, int, Path], Iterator[Outcome]]


def mutated(content: bytes, chance: random.Random, changes: int) -> bytes:
    """Some bytes of `content` changed, removed or doubled.

    What is drawn does not depend on the length: torch's old format holds addresses, and Hypothesis wants each attack to
    draw the same when it is done again.
    """
    changed = bytearray(content)
    for _ in range(changes):
        place = chance.randrange(1 << 32) * len(changed) >> 32
        kind = chance.randrange(3)
        if kind == 0:
            changed[place] = chance.randrange(256)
        elif kind == 1:
            del changed[place : place + chance.randint(1, 8)]
        else:
            changed[place:place] = changed[place : place + chance.randint(1, 8)]
    return bytes(changed)


def outcome_of(attack: Callable[[], object]) -> Outcome:
    """What came of one attack."""
    try:
        attack()
    except NightquantError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - that any other is raised is the finding
        print(f"  through: {type(error).__name__}: {str(error)[:200]!r}")
        return "through"
    return "harmless"


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let the process's address space grow by `MORE_BYTES` and no more."""
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MORE_BYTES, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
