"""One launch: a fresh process that loads every subject, checks it, warms it up and times it in interleaved blocks.

`tasks.benchmark.child` runs it, with JSON files of `tasks.benchmark.messages`.
"""

from __future__ import annotations

import gc
import importlib
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tasks.benchmark.agreement import disagreement
from tasks.benchmark.blocks import time_block, time_single_calls, warm_up, warm_up_and_plan
from tasks.benchmark.loading import Loaded
from tasks.benchmark.messages import COPY_SUFFIX, LaunchReport, LaunchSpec, Subject, SubjectReport, write_message
from tasks.benchmark.process import pin
from tasks.benchmark.schedule import balanced_rounds
from tasks.outputs import tensors_of

Loader = Callable[[Subject], Loaded]


@dataclass
class Ready:
    """A subject that is loaded and checked, and what was timed of it so far."""

    loaded: Loaded
    load_s: float
    first_call_s: float
    calls: int = 0
    round_s: list[float] = field(default_factory=list)
    single_s: list[float] = field(default_factory=list)


def run_launch(spec: LaunchSpec) -> LaunchReport:
    """Do what `spec` says in this process; threads and processors must not have been used yet."""
    affinity = pin(spec.threads)
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(spec.threads)
    refused: dict[str, str] = {}
    with torch.inference_mode():
        ready = _make_ready(spec, refused)
        # A collection before a block would else walk every model and late import: time, and cold caches.
        gc.freeze()
        start_s = time.monotonic() - spec.spawned_at
        _warm_up(spec, ready)
        first_block_s = time.monotonic() - spec.spawned_at
        timed_s = _time_rounds(spec, ready) + _time_single_calls(spec, ready)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return LaunchReport(
        subjects=tuple(_report(subject, ready[subject.name]) for subject in spec.subjects if subject.name in ready),
        refused=refused,
        start_s=start_s,
        first_block_s=first_block_s,
        timed_s=timed_s,
        affinity=affinity,
        threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
        engines=tuple(torch.backends.quantized.supported_engines),
        voluntary_switches=usage.ru_nvcsw,
        involuntary_switches=usage.ru_nivcsw,
        modules=tuple(sorted(name for name in sys.modules if name.startswith(("tasks.", "storage.")))),
    )


def resolve_loader(name: str) -> Loader:
    """The function that ``module:function`` names."""
    module, _, function = name.partition(":")
    loader: Loader = getattr(importlib.import_module(module), function)
    return loader


def _make_ready(spec: LaunchSpec, refused: dict[str, str]) -> dict[str, Ready]:
    """Load and check every subject, in an order of this launch's own: places in memory differ between launches."""
    # Otherwise whichever candidate is loaded first pays for the imports that all of them share.
    for module in spec.modules:
        importlib.import_module(module)
    loader = resolve_loader(spec.loader)
    ready: dict[str, Ready] = {}
    for subject in random.Random(spec.seed).sample(spec.subjects, len(spec.subjects)):
        try:
            state, problem = _load(loader, subject)
        except Exception as error:  # noqa: BLE001 - whatever one candidate raises is its result, and the others go on
            refused[subject.name] = f"it does not run: {type(error).__name__}: {error}"
            continue
        if problem:
            refused[subject.name] = problem
        else:
            ready[subject.name] = state
    return ready


def _load(loader: Loader, subject: Subject) -> tuple[Ready, str]:
    began = time.perf_counter()
    loaded = loader(subject)
    load_s = time.perf_counter() - began
    with loaded.scope():
        began = time.perf_counter()
        result = loaded.call()
        first_call_s = time.perf_counter() - began
    return Ready(loaded, load_s, first_call_s), disagreement(tensors_of(result), loaded.golden)


def _warm_up(spec: LaunchSpec, ready: dict[str, Ready]) -> None:
    for name, state in ready.items():
        call = state.loaded.call
        with state.loaded.scope():
            if name in spec.calls:
                warm_up(call, spec.warm_up_calls, spec.warm_up_s)
                state.calls = spec.calls[name]
            else:
                state.calls = warm_up_and_plan(call, spec.warm_up_calls, spec.warm_up_s, spec.block_s)


def _time_rounds(spec: LaunchSpec, ready: dict[str, Ready]) -> float:
    timed_s = 0.0
    for order in balanced_rounds(sorted(ready), spec.rounds, spec.seed):
        for name in order:
            state = ready[name]
            with state.loaded.scope():
                elapsed = time_block(state.loaded.call, state.calls)
            state.round_s.append(elapsed / state.calls)
            timed_s += elapsed
    return timed_s


def _time_single_calls(spec: LaunchSpec, ready: dict[str, Ready]) -> float:
    for name, state in ready.items():
        if not name.endswith(COPY_SUFFIX):
            with state.loaded.scope():
                state.single_s = time_single_calls(state.loaded.call, spec.single_calls, spec.single_s)
    return sum(sum(state.single_s) for state in ready.values())


def _report(subject: Subject, state: Ready) -> SubjectReport:
    return SubjectReport(
        name=subject.name,
        load_s=state.load_s,
        first_call_s=state.first_call_s,
        calls_per_block=state.calls,
        round_s=tuple(state.round_s),
        single_s=tuple(state.single_s),
    )


def main(spec_path: str, out_path: str) -> None:
    """Run the launch that the file `spec_path` describes and write its report to `out_path`."""
    spec = LaunchSpec.model_validate_json(Path(spec_path).read_text(encoding="utf-8"))
    write_message(run_launch(spec), Path(out_path))
