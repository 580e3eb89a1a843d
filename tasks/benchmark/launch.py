"""One launch: a fresh process that loads every subject, checks it, warms it up and times it in interleaved blocks.

`tasks.benchmark.child` runs it.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tasks.benchmark.blocks import time_block, time_single_calls, warm_up, warm_up_and_plan
from tasks.benchmark.loading import Loaded, disagreement, loader_named
from tasks.benchmark.messages import COPY_SUFFIX, LaunchReport, LaunchSpec, Subject, SubjectReport
from tasks.machine import affinity
from tasks.outputs import tensors_of

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Ready:
    """A subject that is loaded and checked."""

    loaded: Loaded
    load_s: float
    first_call_s: float


def run(spec_json: str) -> LaunchReport:
    """Do what a `LaunchSpec` says in this process; threads and processors must not have been used yet."""
    spec = LaunchSpec.model_validate_json(spec_json)
    pinned = pin(spec.threads)
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(spec.threads)
    with torch.inference_mode():
        ready, refused = _load_all(spec)
        # A collection before a block would else walk every model and late import: time, and cold caches.
        gc.freeze()
        start_s = time.monotonic() - spec.spawned_at
        calls = _warm_up(spec, ready)
        first_block_s = time.monotonic() - spec.spawned_at
        round_s = _time_rounds(spec, ready, calls)
        single_s = _time_single_calls(spec, ready)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return LaunchReport(
        subjects={
            subject.name: SubjectReport(
                load_s=ready[subject.name].load_s,
                first_call_s=ready[subject.name].first_call_s,
                calls_per_block=calls[subject.name],
                round_s=tuple(round_s[subject.name]),
                single_s=tuple(single_s.get(subject.name, ())),
            )
            for subject in spec.subjects
            if subject.name in ready
        },
        refused=refused,
        start_s=start_s,
        first_block_s=first_block_s,
        timed_s=sum(calls[name] * sum(round_s[name]) for name in ready) + sum(map(sum, single_s.values())),
        affinity=pinned,
        capability=torch.backends.cpu.get_cpu_capability(),
        engines=tuple(torch.backends.quantized.supported_engines),
        voluntary_switches=usage.ru_nvcsw,
        involuntary_switches=usage.ru_nivcsw,
        modules=tuple(sorted(name for name in sys.modules if name.startswith(("tasks.", "storage.")))),
    )


def pin(count: int) -> tuple[int, ...]:
    """Pin this process to `count` processors where the platform allows it; return those it may now run on."""
    if allowed := affinity():
        with suppress(OSError):  # some sandboxes forbid it; what is returned, and recorded, says so
            os.sched_setaffinity(0, choose_processors(count, allowed))
    return affinity()


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose up to `count` of the allowed processors: the highest numbers first, one per physical core first.

    Low numbers tend to serve interrupts; two hardware threads of one core share its arithmetic units.
    """
    cores: dict[str, int] = {}
    for processor in sorted(allowed, reverse=True):
        cores.setdefault(_core_of(processor), processor)
    alone = list(cores.values())
    sharing = sorted(set(allowed) - set(alone), reverse=True)
    return tuple(sorted((alone + sharing)[:count]))


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
        order.append(order[-1][::-1] if index % 2 else tuple(generator.sample(list(names), len(names))))
    return order


def _load_all(spec: LaunchSpec) -> tuple[dict[str, Ready], dict[str, str]]:
    """Load and check every subject, in an order of this launch's own: places in memory differ between launches."""
    # Otherwise whichever candidate is loaded first pays for the imports that all of them share.
    for module in spec.modules:
        importlib.import_module(module)
    loader = loader_named(spec.loader)
    ready: dict[str, Ready] = {}
    refused: dict[str, str] = {}
    for subject in random.Random(spec.seed).sample(spec.subjects, len(spec.subjects)):
        try:
            loaded, problem = _load(loader, subject)
        except Exception as error:  # noqa: BLE001 - whatever one candidate raises is its result, and the others go on
            refused[subject.name] = f"it does not run: {type(error).__name__}: {error}"
            continue
        if problem:
            refused[subject.name] = problem
        else:
            ready[subject.name] = loaded
    return ready, refused


def _load(loader: Callable[[Subject], Loaded], subject: Subject) -> tuple[Ready, str]:
    began = time.perf_counter()
    loaded = loader(subject)
    load_s = time.perf_counter() - began
    with loaded.scope():
        began = time.perf_counter()
        result = loaded.call()
        first_call_s = time.perf_counter() - began
    return Ready(loaded, load_s, first_call_s), disagreement(tensors_of(result), loaded.golden)


def _warm_up(spec: LaunchSpec, ready: dict[str, Ready]) -> dict[str, int]:
    """Warm every subject up; calls per block by subject."""
    profile, calls = spec.profile, dict(spec.calls)
    for name, subject in ready.items():
        with subject.loaded.scope():
            if name in calls:
                warm_up(subject.loaded.call, profile.warm_up_calls, profile.warm_up_s)
            else:
                calls[name] = warm_up_and_plan(
                    subject.loaded.call, profile.warm_up_calls, profile.warm_up_s, profile.block_s
                )
    return calls


def _time_rounds(spec: LaunchSpec, ready: dict[str, Ready], calls: dict[str, int]) -> dict[str, list[float]]:
    """Seconds per call in each round, by subject."""
    round_s: dict[str, list[float]] = {name: [] for name in ready}
    for order in balanced_rounds(sorted(ready), spec.profile.rounds, spec.seed):
        for name in order:
            loaded = ready[name].loaded
            with loaded.scope():
                round_s[name].append(time_block(loaded.call, calls[name]) / calls[name])
    return round_s


def _time_single_calls(spec: LaunchSpec, ready: dict[str, Ready]) -> dict[str, list[float]]:
    """Seconds of single calls, by subject; the baseline's copy needs none."""
    profile, single_s = spec.profile, {}
    most = -(-profile.single_calls // profile.launches)
    for name, subject in ready.items():
        if not name.endswith(COPY_SUFFIX):
            with subject.loaded.scope():
                single_s[name] = time_single_calls(subject.loaded.call, most, profile.single_s)
    return single_s


def _core_of(processor: int) -> str:
    siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
    return siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
