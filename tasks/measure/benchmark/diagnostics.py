"""Benchmark results for each subject: times, memory, and a proof of the operators and instructions that ran."""

from __future__ import annotations

import gc
import importlib
import resource
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pkgutil import resolve_name
from typing import TypeVar

import numpy as np

from storage.errors import MeasurementError
from tasks.environment.machine import available_cores, memory_in_use
from tasks.measure.benchmark.child import describe_end
from tasks.measure.benchmark.contest import Measured
from tasks.measure.benchmark.messages import ChildSpec, Memory, MemoryReport, Subject
from tasks.measure.benchmark.protocol import Session
from tasks.measure.benchmark.statistics import Ratio, percentiles
from tasks.values.proofs import Proof, ProofReport
from tasks.values.results import Timing


def timings_of(measured: Measured, batch_size: int, memory: dict[str, Memory]) -> Iterator[Timing]:
    """Yield one row per subject; the row for the baseline's copy has the setting ``a/a``."""
    warm, cold = measured.with_caches("warm"), measured.with_caches("cold")
    judged = warm if measured.contest.caches == "warm" else cold
    for subject in measured.subjects:
        name = subject.key
        reports, blocks, calls = measured.of(name), warm.round_s(name), cold.round_s(name)
        lower, median, upper = np.quantile(blocks, [0.25, 0.5, 0.75])
        p50_s, p90_s, p99_s = percentiles(measured.single_s(name))
        launches, rounds = blocks.shape
        numbers = range(1, launches + 1)
        is_decided = name != measured.baseline
        yield Timing(
            recipe=subject.name.recipe,
            runtime=subject.name.runtime,
            setting=subject.setting,
            threads=measured.threads,
            batch_size=batch_size,
            latency_s=float(median),
            latency_q25_s=float(lower),
            latency_q75_s=float(upper),
            cold_latency_s=float(np.median(calls)),
            launches=launches,
            blocks=blocks.size,
            calls_per_block=reports[0].calls_per_block,
            # In the first launches, load times include imports.
            load_s=min(report.load_s for report in reports),
            first_call_s=float(np.median([report.first_call_s for report in reports])),
            latency_p50_s=p50_s,
            latency_p90_s=p90_s,
            latency_p99_s=p99_s,
            block_launch=tuple(np.repeat(numbers, rounds).tolist()),
            block_round=tuple(range(1, rounds + 1)) * launches,
            block_s=tuple(blocks.ravel().tolist()),
            **(memory[name].model_dump() if name in memory else {}),
            **_ratios(warm, name, "", is_decided=is_decided),
            **_ratios(cold, name, "cold_", is_decided=is_decided),
            **_gains(judged, name),
        )


def _ratios(measured: Measured, name: str, prefix: str, *, is_decided: bool) -> dict[str, float | str | None]:
    ratio, over = measured.ratio(name), measured.over_current(name)
    bounds = measured.bounds(name) if is_decided else None
    # Use only the launches that timed the subject, because the host's speed may have changed since.
    launches = len(measured.of(name))
    latency_s = float(np.median(measured.round_s(measured.baseline)[:launches]))
    columns = {"baseline_latency_s": latency_s, **_interval("speedup", ratio)}
    if bounds is not None:
        columns |= {"speedup_bound_low": bounds.low, "speedup_bound_high": bounds.high}
    if over is not None:
        columns |= _interval("over_current", over)
    return {f"{prefix}{column}": value for column, value in columns.items()}


def _gains(measured: Measured, name: str) -> dict[str, float | str | None]:
    columns: dict[str, float | str | None] = {}
    if (factors := measured.gains(name)) is not None:
        columns |= _interval("runtime_gain", factors[0]) | _interval("int8_gain", factors[1])
    if (over := measured.over_best_float(name)) is not None:
        columns |= {"best_float": measured.best_float(), **_interval("over_best_float", over)}
    if (bounds := measured.over_best_float_bounds(name)) is not None:
        columns |= {"over_best_float_bound_low": bounds.low, "over_best_float_bound_high": bounds.high}
    return columns


def _interval(column: str, ratio: Ratio) -> dict[str, float | str | None]:
    return {column: ratio.value, f"{column}_low": ratio.low, f"{column}_high": ratio.high}


R = TypeVar("R", MemoryReport, ProofReport)
_SAMPLED = ("instructions", "saturation")
_PROOF, _CALLS = "tasks.measure.proof.child", 3


@dataclass
class Diagnosis:
    """Memory and proofs by subject; ``unknown`` explains missing values, by subject and ``measurements`` column."""

    memory: dict[str, Memory] = field(default_factory=dict)
    proofs: dict[str, Proof] = field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = field(default_factory=dict)

    def lack(self, columns: Iterable[str], reasons: dict[str, str]) -> None:
        """Record, for each subject in `reasons`, the reason that the values in `columns` are missing."""
        for name, reason in reasons.items():
            self.unknown.setdefault(name, {}).update(dict.fromkeys(columns, reason))


def diagnose(session: Session, subjects: Sequence[Subject], modules: tuple[str, ...], known: Diagnosis) -> Diagnosis:
    """Return `known` with the missing proofs and memory, which do not depend on wall time.

    Two processes collect half of the proofs each, if the host has processors for both.
    """
    diagnosis = Diagnosis(dict(known.memory), dict(known.proofs))
    unproven = [subject for subject in subjects if subject.key not in known.proofs]
    unmeasured = [subject for subject in subjects if subject.key not in known.memory]
    halves = 2 if available_cores() >= 2 * session.threads else 1
    with ThreadPoolExecutor(halves) as pool:
        proving = [
            pool.submit(look, session, _PROOF, ProofReport, unproven[start::halves], modules) for start in range(halves)
        ]
        for reports, unproved in (proofs.result() for proofs in proving):
            diagnosis.lack(Proof.model_fields, unproved)
            for report in reports:
                diagnosis.proofs |= report.proofs
                diagnosis.lack(Proof.model_fields, report.refused)
                if report.unsampled:
                    diagnosis.lack(_SAMPLED, dict.fromkeys(report.proofs, report.unsampled))
    # Processes that measure memory can run in parallel, because each counts only its own pages.
    memories, refused = look(session, __name__, MemoryReport, unmeasured, modules, available_cores())
    for memory in memories:
        diagnosis.memory |= memory.memory
        refused |= memory.refused
    diagnosis.lack(Memory.model_fields, refused)
    return diagnosis


def look(
    session: Session,
    module: str,
    report: type[R],
    subjects: Sequence[Subject],
    modules: tuple[str, ...],
    processes: int = 1,
) -> tuple[list[R], dict[str, str]]:
    """Measure all subjects in one process; if it dies, use a process each. Return reports, and reasons by subject."""
    if not subjects:
        return [], {}
    try:
        return [session.examine(module, report, subjects, modules, processes)], {}
    except MeasurementError as error:
        if len(subjects) == 1 or session.limit.left_s() == 0:
            return [], {subject.key: str(error) for subject in subjects}
    reports: list[R] = []
    refused: dict[str, str] = {}
    for subject in subjects:
        more_reports, more_refused = look(session, module, report, [subject], modules)
        reports += more_reports
        refused |= more_refused
    return reports, refused


def run(spec_json: str, _wait: object = None) -> MemoryReport:
    """Measure the memory of each subject of a `ChildSpec` in a forked process, which holds no other model."""
    import torch  # the process of the run imports this module without torch

    spec = ChildSpec.model_validate_json(spec_json)
    torch.set_num_threads(spec.threads)
    for module in (*spec.modules, spec.loader.partition(":")[0]):
        importlib.import_module(module)
    # Without `gc.freeze`, garbage collection in a child would touch, and therefore copy, every object of this process.
    gc.freeze()
    context, results = get_context("fork"), dict[str, Memory | str]()
    for first in range(0, len(spec.subjects), spec.processes):
        started: dict[str, tuple[ForkProcess, Connection]] = {}
        for subject in spec.subjects[first : first + spec.processes]:
            reader, writer = context.Pipe(duplex=False)
            child = context.Process(target=_measure, args=(subject, spec, writer))
            child.start()
            writer.close()
            started[subject.key] = child, reader
        for name, (child, reader) in started.items():
            try:
                results[name] = reader.recv()
                child.join()
            except (EOFError, OSError):  # the child died before its report was complete
                child.join()
                results[name] = f"The candidate's memory process {describe_end(child.exitcode or 0)}"
    return MemoryReport(
        memory={name: memory for name, memory in results.items() if isinstance(memory, Memory)},
        refused={name: reason for name, reason in results.items() if isinstance(reason, str)},
    )


def _measure(subject: Subject, spec: ChildSpec, writer: Connection) -> None:
    import torch

    try:
        before = memory_in_use()
        with torch.inference_mode():
            loaded = resolve_name(spec.loader)(subject)
            after = memory_in_use()
            with loaded.scope():
                for _ in range(_CALLS):
                    loaded.call()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        writer.send(Memory(rss_loaded_bytes=max(0, after - before), peak_rss_bytes=max(0, peak - before)))
    except Exception as error:
        writer.send(f"{type(error).__name__}: {error}")
        raise
