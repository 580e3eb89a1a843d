"""One launch: a new process that loads, checks and warms up all subjects, and times interleaved blocks of calls."""

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch import Tensor

from tasks.data.outputs import tensors_of
from tasks.data.tensor_files import Golden
from tasks.environment.machine import affinity
from tasks.measure.benchmark.messages import LaunchOrder, LaunchReport, LaunchSpec, Subject, SubjectReport
from tasks.measure.benchmark.rounds import Eviction, Loaded, time_cold_rounds, time_rounds, time_singles, warm_up_all
from tasks.runtimes.base import runtime_named

# Largest allowed relative Euclidean distance between outputs and golden outputs. On the same host, only rounding
# differs: rounding errors stay below 1e-4, whereas a float model and its int8 version differ by 1e-2 or more.
TOLERANCE = 1e-3
_TOPOLOGY = Path("/sys/devices/system/cpu")


def run(spec_json: str, wait: Callable[[], str]) -> LaunchReport:
    """Load a `LaunchSpec`, wait for a `LaunchOrder` and execute it, before other code starts threads."""
    spec, own = LaunchSpec.model_validate_json(spec_json), affinity()
    processors = choose_processors(spec.threads, own)
    # Two launches load on different processors at the same time, and then time on the same processors in turn.
    others = [processor for processor in own if processor not in processors]
    pin(spec.threads, others if spec.loads_beside else own)
    torch.set_num_interop_threads(spec.threads)
    with torch.inference_mode():
        ready, refused = _load_all(spec)
        loaded_s = time.monotonic() - spec.spawned_at
        order, began = LaunchOrder.model_validate_json(wait()), time.monotonic()
        if spec.loads_beside:
            _move(processors)
        # Without `gc.freeze`, garbage collection before a block would take time to visit every model, and would evict
        # data from caches.
        gc.freeze()
        subjects = {name: loaded for name, (loaded, _, _) in ready.items() if name in order.keys}
        calls = warm_up_all(spec.profile, order, subjects)
        round_s = time_rounds(spec, subjects, calls)
        single_s = time_singles(spec, order, subjects)
        budget_s = spec.cold_share * (loaded_s + time.monotonic() - began)
        cold_s = time_cold_rounds(spec, order, subjects, Eviction(affinity()), budget_s)
    reports = {}
    for name in subjects:
        _, load_s, first_call_s = ready[name]
        reports[name] = SubjectReport(
            load_s=load_s,
            first_call_s=first_call_s,
            calls_per_block=calls[name],
            round_s=tuple(round_s[name]),
            single_s=tuple(single_s.get(name, ())),
            cold_s=tuple(cold_s[name]),
        )
    return LaunchReport(
        subjects=reports,
        refused=refused,
        modules=tuple(sorted(name for name in sys.modules if name.startswith(("tasks.", "storage.")))),
    )


def pin(threads: int, allowed: Sequence[int]) -> None:
    """Use only `threads` of the `allowed` processors, and `threads` torch threads, in this process."""
    with suppress(OSError):  # some sandboxes block ``sched_setaffinity``
        os.sched_setaffinity(0, choose_processors(threads, allowed))
    torch.set_num_threads(threads)


def _move(processors: Sequence[int]) -> None:
    """Use only these processors in all threads of this process, which the libraries started while loading."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended, or a sandbox blocks ``sched_setaffinity``
            os.sched_setaffinity(int(thread.name), processors)


def choose_processors(count: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """Choose processors on different cores if possible; low-numbered processors, which serve interrupts, come last."""
    cores: dict[str, int] = {}
    for processor in sorted(allowed, reverse=True):
        siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        core = siblings.read_text(encoding="ascii").strip() if siblings.is_file() else str(processor)
        cores.setdefault(core, processor)
    primary = list(cores.values())
    siblings_of_primary = sorted(set(allowed) - set(primary), reverse=True)
    return tuple(sorted((primary + siblings_of_primary)[:count]))


def load_candidate(subject: Subject) -> Loaded:
    """Open a candidate for calls with the golden inputs."""
    opened = runtime_named(subject.name.runtime).opener().open(subject.files(), torch.get_num_threads())
    golden = Golden.read(Path(subject.golden))
    return Loaded(partial(opened.call, *golden.inputs.values()), golden.outputs, opened.scope)


def disagreement(outputs: Sequence[Tensor], golden: Sequence[Tensor]) -> str:
    """Describe how outputs differ from `golden`, or return ``""``; without `golden`, report only NaN or infinity."""
    for index, output in enumerate(outputs):
        if output.is_floating_point() and not bool(torch.isfinite(output).all()):
            return f"output {index} contains NaN or infinities"
    if not golden:
        return ""
    if len(outputs) != len(golden):
        return f"the model returns {len(outputs)} outputs, but the evaluation had {len(golden)}"
    for index, (output, reference) in enumerate(zip(outputs, golden, strict=True)):
        if output.shape != reference.shape:
            return f"output {index} has shape {list(output.shape)}, but the evaluation had {list(reference.shape)}"
        difference = torch.linalg.vector_norm(output.double() - reference.double())
        norm = torch.linalg.vector_norm(reference.double())
        distance = float(difference / norm if norm > 0 else difference)
        if distance > TOLERANCE:
            return f"output {index} differs by {distance:.2g} (relative) from the golden output (limit {TOLERANCE:g})"
    return ""


def _load_all(spec: LaunchSpec) -> tuple[dict[str, tuple[Loaded, float, float]], dict[str, str]]:
    """Load and check the subjects in random order, so that memory addresses differ between launches.

    Return each subject with the seconds of loading and of the first call, and the reasons for refusals.
    """
    # Import shared modules first, because otherwise the first candidate's load time would include the imports.
    for module in spec.modules:
        importlib.import_module(module)
    loader: Callable[[Subject], Loaded] = resolve_name(spec.loader)
    ready: dict[str, tuple[Loaded, float, float]] = {}
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
        except Exception as error:  # noqa: BLE001 - the error of one candidate must not stop the other candidates
            problem = f"the candidate does not run: {type(error).__name__}: {error}"
        if problem:
            refused[subject.key] = problem
        else:
            ready[subject.key] = loaded, load_s, first_call_s
    return ready, refused
