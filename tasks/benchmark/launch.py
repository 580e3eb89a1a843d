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
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch import Tensor

from tasks.benchmark.blocks import (
    no_garbage_collection,
    time_block,
    time_cold_call,
    time_single_calls,
    warm_up,
    warm_up_and_plan,
)
from tasks.benchmark.caches import Eviction
from tasks.benchmark.messages import COPY_SUFFIX, LaunchReport, LaunchSpec, Subject, SubjectReport
from tasks.benchmark.processors import choose_processors, excess, idle_processors, open_to, processors_used
from tasks.machine import affinity
from tasks.outputs import tensors_of
from tasks.runtimes import RUNTIMES
from tasks.runtimes.base import CandidateFiles
from tasks.tensor_files import Golden

# Relative Euclidean distance. The same artifact in a fresh process on the same machine differs by rounding at most: a
# different split among threads, or an activation that falls into the neighbouring step of its int8 grid. Rounding stays
# below 1e-4; confusing a float model with its int8 version shows as 1e-2 and more.
TOLERANCE = 1e-3
# Cold calls may take a third of what blocks and single calls have taken: less than a quarter of a launch.
_COLD_SHARE = 1 / 3


@dataclass(frozen=True)
class Loaded:
    """A subject ready to be called; ``scope`` is entered around its calls, outside of what is timed."""

    call: Callable[[], object]
    golden: tuple[Tensor, ...] = ()
    scope: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class _Ready:
    loaded: Loaded
    load_s: float
    first_call_s: float
    idle_processors: float


def run(spec_json: str) -> LaunchReport:
    """Do what a `LaunchSpec` says in this process; threads and processors must not have been used yet."""
    spec = LaunchSpec.model_validate_json(spec_json)
    allowed = affinity()
    if allowed:
        with suppress(OSError):  # some sandboxes forbid it; the affinity that is reported says so
            os.sched_setaffinity(0, choose_processors(spec.threads, allowed))
    pinned = affinity()
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(spec.threads)
    with torch.inference_mode():
        ready, refused = _load_all(spec)
        # Otherwise a collection before a block would walk every model and late import: time, and cold caches.
        gc.freeze()
        start_s = time.monotonic() - spec.spawned_at
        calls = _warm_up(spec, ready)
        first_block_s = time.monotonic() - spec.spawned_at
        began = time.perf_counter()
        round_s = _time_rounds(spec, ready, calls)
        single_s = _time_single_calls(spec, ready)
        warm_wall_s = time.perf_counter() - began
        cold_s = _time_cold_rounds(spec, ready, Eviction(pinned), warm_wall_s * _COLD_SHARE)
        cold_wall_s = time.perf_counter() - began - warm_wall_s
        with open_to(allowed):
            used = _count_processors(ready, calls)
    for name, processors in used.items():
        if problem := excess(processors, spec.threads):
            refused[name] = problem
            del ready[name]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return LaunchReport(
        subjects={
            subject.name: SubjectReport(
                load_s=ready[subject.name].load_s,
                first_call_s=ready[subject.name].first_call_s,
                calls_per_block=calls[subject.name],
                round_s=tuple(round_s[subject.name]),
                single_s=tuple(single_s.get(subject.name, ())),
                cold_s=tuple(cold_s[subject.name]),
                cpu_per_wall=used[subject.name],
            )
            for subject in spec.subjects
            if subject.name in ready
        },
        refused=refused,
        start_s=start_s,
        first_block_s=first_block_s,
        end_s=time.monotonic() - spec.spawned_at,
        cold_wall_s=cold_wall_s,
        timed_s=sum(calls[name] * sum(times) for name, times in round_s.items())
        + sum(map(sum, (*single_s.values(), *cold_s.values()))),
        affinity=pinned,
        capability=torch.backends.cpu.get_cpu_capability(),
        engines=tuple(torch.backends.quantized.supported_engines),
        voluntary_switches=usage.ru_nvcsw,
        involuntary_switches=usage.ru_nivcsw,
        modules=tuple(sorted(name for name in sys.modules if name.startswith(("tasks.", "storage.")))),
    )


def load_candidate(subject: Subject) -> Loaded:
    """Open a candidate and bind it to its golden inputs."""
    files = CandidateFiles(Path(subject.folder), {kind: Path(folder) for kind, folder in subject.shared.items()})
    opened = RUNTIMES[subject.runtime].open(files, torch.get_num_threads())
    golden = Golden.read(Path(subject.golden))
    return Loaded(partial(opened.call, *golden.inputs.values()), golden.outputs, opened.scope)


def disagreement(outputs: Sequence[Tensor], golden: Sequence[Tensor]) -> str:
    """How `outputs` differ from what was evaluated, or ""; without golden outputs only finiteness is checked."""
    for index, output in enumerate(outputs):
        if output.is_floating_point() and not bool(torch.isfinite(output).all()):
            return f"output {index} holds NaN or infinities"
    if not golden:
        return ""
    if len(outputs) != len(golden):
        return f"the model returns {len(outputs)} outputs where {len(golden)} were evaluated"
    for index, (output, reference) in enumerate(zip(outputs, golden, strict=True)):
        if output.shape != reference.shape:
            return f"output {index} has shape {list(output.shape)} where {list(reference.shape)} was evaluated"
        difference = torch.linalg.vector_norm(output.double() - reference.double())
        norm = torch.linalg.vector_norm(reference.double())
        distance = float(difference / norm if norm > 0 else difference)
        if distance > TOLERANCE:
            return (
                f"output {index} differs by {distance:.2g} (relative) from what was evaluated; allowed: {TOLERANCE:g}"
            )
    return ""


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


def _load_all(spec: LaunchSpec) -> tuple[dict[str, _Ready], dict[str, str]]:
    """Load and check every subject, in an order of this launch's own: places in memory differ between launches."""
    # Otherwise the first candidate pays for the imports that all of them share.
    for module in spec.modules:
        importlib.import_module(module)
    loader: Callable[[Subject], Loaded] = resolve_name(spec.loader)
    ready: dict[str, _Ready] = {}
    refused: dict[str, str] = {}
    idle = 0.0
    for subject in random.Random(spec.seed).sample(spec.subjects, len(spec.subjects)):
        try:
            began = time.perf_counter()
            loaded = loader(subject)
            load_s = time.perf_counter() - began
            with loaded.scope():
                began = time.perf_counter()
                result = loaded.call()
                first_call_s = time.perf_counter() - began
            problem = disagreement(tensors_of(result), loaded.golden)
        except Exception as error:  # noqa: BLE001 - whatever one candidate raises is its result, and the others go on
            problem = f"it does not run: {type(error).__name__}: {error}"
        if problem:
            refused[subject.name] = problem
        else:
            before, idle = idle, idle_processors()
            ready[subject.name] = _Ready(loaded, load_s, first_call_s, idle_processors=max(0.0, idle - before))
    return ready, refused


def _warm_up(spec: LaunchSpec, ready: dict[str, _Ready]) -> dict[str, int]:
    """Warm every subject up; calls per block by subject."""
    profile, calls = spec.profile, dict(spec.calls)
    for name, subject in ready.items():
        call = subject.loaded.call
        with subject.loaded.scope():
            if name in calls:
                warm_up(call, profile.warm_up_calls // 2, profile.rewarm_s)
            else:
                calls[name] = warm_up_and_plan(call, profile.warm_up_calls, profile.warm_up_s, profile.block_s)
    return calls


def _time_rounds(spec: LaunchSpec, ready: dict[str, _Ready], calls: dict[str, int]) -> dict[str, list[float]]:
    """Seconds per call in each round, by subject."""
    round_s: dict[str, list[float]] = {name: [] for name in ready}
    for order in balanced_rounds(sorted(ready), spec.profile.rounds, spec.seed):
        for name in order:
            loaded = ready[name].loaded
            with loaded.scope():
                round_s[name].append(time_block(loaded.call, calls[name]) / calls[name])
    return round_s


def _time_single_calls(spec: LaunchSpec, ready: dict[str, _Ready]) -> dict[str, list[float]]:
    """Seconds of single calls, by subject; the baseline's copy needs none."""
    profile, single_s = spec.profile, {}
    most = -(-profile.single_calls // profile.launches)
    for name, subject in ready.items():
        if not name.endswith(COPY_SUFFIX):
            with subject.loaded.scope():
                single_s[name] = time_single_calls(subject.loaded.call, most, profile.single_s)
    return single_s


def _time_cold_rounds(
    spec: LaunchSpec, ready: dict[str, _Ready], evict: Eviction, budget_s: float
) -> dict[str, list[float]]:
    """Seconds of one call with cold caches in each round, by subject.

    The first launch makes pairs of mirrored rounds until `budget_s` is spent, at least one; later ones as many.
    """
    cold_s: dict[str, list[float]] = {name: [] for name in ready}
    began = time.perf_counter()
    with no_garbage_collection():
        order = balanced_rounds(sorted(ready), spec.cold_rounds or spec.profile.cold_rounds, spec.seed)
        for index, names in enumerate(order):
            spent = spec.cold_rounds is None and time.perf_counter() - began > budget_s
            if spent and index and index % 2 == 0:
                break
            for name in names:
                loaded = ready[name].loaded
                with loaded.scope():
                    cold_s[name].append(time_cold_call(loaded.call, evict))
    return cold_s


def _count_processors(ready: dict[str, _Ready], calls: dict[str, int]) -> dict[str, float]:
    """How many processors each subject keeps busy in a quarter of a block."""
    used: dict[str, float] = {}
    for name, subject in ready.items():
        with subject.loaded.scope():
            used[name] = processors_used(subject.loaded.call, -(-calls[name] // 4), subject.idle_processors)
    return used
