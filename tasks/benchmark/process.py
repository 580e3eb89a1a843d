"""A process's environment, threads and processors, set before it computes anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose up to `count` of the allowed processors: the highest numbers first, one per physical core first.

    Low numbers tend to serve interrupts; two hardware threads of one core share its arithmetic units.
    """
    highest_first = sorted(allowed, reverse=True)
    seen: set[str] = set()
    alone: list[int] = []
    sharing: list[int] = []
    for processor in highest_first:
        core = _core_of(processor)
        (sharing if core in seen else alone).append(processor)
        seen.add(core)
    return tuple(sorted((alone + sharing)[:count]))


def pin(count: int) -> tuple[int, ...]:
    """Pin this process to `count` processors where the platform allows it; give those it may now run on."""
    if not hasattr(os, "sched_setaffinity"):
        return ()
    allowed = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, choose_processors(count, allowed))
    except OSError:
        # Some sandboxes forbid it; the affinity that is given back, and recorded, says so.
        return tuple(allowed)
    return tuple(sorted(os.sched_getaffinity(0)))


def environment(threads: int) -> dict[str, str]:
    """The environment of a child: as this process's, with every library's thread pool of one size."""
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return os.environ | dict.fromkeys(pools, str(threads)) | {"PYTHONHASHSEED": "0"}


def _core_of(processor: int) -> str:
    siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
    return siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
