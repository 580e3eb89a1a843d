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

from tasks.benchmark.blocks import time_block, time_single_calls, warm_up, warm_up_and_plan
from tasks.benchmark.messages import COPY_SUFFIX, LaunchReport, LaunchSpec, Subject, SubjectReport
from tasks.machine import affinity
from tasks.outputs import tensors_of
from tasks.runtimes import RUNTIMES
from tasks.runtimes.base import CandidateFiles
from tasks.tensor_files import Golden

# Relative Euclidean distance. The same artifact in a fresh process on the same machine differs by rounding at most: a
# different split among threads, or an activation that falls into the neighbouring step of its int8 grid. Rounding stays
# below 1e-4; confusing a float model with its int8 version shows as 1e-2 and more.
TOLERANCE = 1e-3
_TOPOLOGY = Path("/sys/devices/system/cpu")


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


def run(spec_json: str) -> LaunchReport:
    """Do what a `LaunchSpec` says in this process; threads and processors must not have been used yet."""
    spec = LaunchSpec.model_validate_json(spec_json)
    if allowed := affinity():
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


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose up to `count` of the allowed processors: the highest numbers first, one per physical core first.

    Low numbers tend to serve interrupts; two hardware threads of one core share its arithmetic units.
    """
    cores: dict[str, int] = {}
    for processor in sorted(allowed, reverse=True):
        siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        core = siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
        cores.setdefault(core, processor)
    alone = list(cores.values())
    sharing = sorted(set(allowed) - set(alone), reverse=True)
    return tuple(sorted((alone + sharing)[:count]))


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
            ready[subject.name] = _Ready(loaded, load_s, first_call_s)
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
