"""Benchmark results for each subject: times, memory, and a proof of the operators and instructions that ran."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from storage.errors import MeasurementError
from storage.results import Setting
from tasks.benchmark.child import Limit
from tasks.benchmark.messages import COPY_SUFFIX, INCUMBENT_SUFFIX, Memory, MemoryReport, Subject
from tasks.benchmark.protocol import Measured, Session
from tasks.benchmark.statistics import Ratio, percentiles
from tasks.proofs import Proof, ProofReport
from tasks.results import Timing

_MARKED: dict[str, Setting] = {COPY_SUFFIX[1:]: "a/a", INCUMBENT_SUFFIX[1:]: "incumbent"}


def timings_of(
    measured: Measured,
    batch_size: int,
    setting: Setting,
    memory: dict[str, Memory],
    sequence_length: int | None = None,
) -> Iterator[Timing]:
    """Yield one row per subject; the row for the baseline's copy has the setting ``a/a``."""
    warm, cold = measured.with_caches("warm"), measured.with_caches("cold")
    for name in measured.names():
        reports, blocks, calls = measured.of(name), warm.round_s(name), cold.round_s(name)
        lower, median, upper = np.quantile(blocks, [0.25, 0.5, 0.75])
        p50_s, p90_s, p99_s = percentiles(measured.single_s(name))
        plain, _, mark = name.partition("#")
        recipe, _, runtime = plain.partition("/")
        launches, rounds = blocks.shape
        is_decided = setting == "primary" and name != measured.baseline
        yield Timing(
            recipe=recipe,
            runtime=runtime,
            setting=_MARKED.get(mark, setting),
            threads=measured.threads,
            batch_size=batch_size,
            sequence_length=sequence_length,
            latency_s=float(median),
            latency_q25_s=float(lower),
            latency_q75_s=float(upper),
            cold_latency_s=float(np.median(calls)),
            launches=launches,
            blocks=blocks.size,
            calls_per_block=reports[0].calls_per_block,
            # Exclude the first launch, whose load times include imports. The other launches import the modules before
            # they load subjects.
            load_s=float(np.median([report.load_s for report in reports[1:] or reports])),
            first_call_s=float(np.median([report.first_call_s for report in reports])),
            latency_p50_s=p50_s,
            latency_p90_s=p90_s,
            latency_p99_s=p99_s,
            threads_used=max(report.threads_used for report in reports),
            block_launch=_numbered(launches, rounds),
            block_round=tuple(range(1, rounds + 1)) * launches,
            block_s=tuple(blocks.ravel().tolist()),
            **(memory[name].model_dump() if name in memory else {}),
            **_ratios(warm, name, "", is_decided=is_decided),
            **_ratios(cold, name, "cold_", is_decided=is_decided),
            **(_gains(measured.with_caches(measured.contest.caches), name) if setting == "primary" else {}),
        )


def _ratios(measured: Measured, name: str, prefix: str, *, is_decided: bool) -> dict[str, float | str | None]:
    ratio, over = measured.ratio(name), measured.over_incumbent(name)
    bounds = measured.bounds(name) if is_decided else None
    # Use only the launches that timed the subject, because the host's speed may have changed since.
    launches = len(measured.of(name))
    latency_s = float(np.median(measured.round_s(measured.baseline)[:launches]))
    columns = {"baseline_latency_s": latency_s, **_interval("speedup", ratio)}
    if bounds is not None:
        columns |= {"speedup_bound_low": bounds.low, "speedup_bound_high": bounds.high}
    if over is not None:
        columns |= _interval("over_incumbent", over)
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


def _numbered(launches: int, rounds: int) -> tuple[int, ...]:
    return tuple(launch for launch in range(1, launches + 1) for _ in range(rounds))


R = TypeVar("R", MemoryReport, ProofReport)
_SAMPLED = ("instructions", "saturation")


@dataclass
class Diagnosis:
    """Memory and proofs by subject; ``unknown`` explains missing values, by subject and ``measurements`` column."""

    memory: dict[str, Memory] = field(default_factory=dict)
    proofs: dict[str, Proof] = field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = field(default_factory=dict)
    proof_wall_s: float = 0.0

    def lack(self, columns: Iterable[str], reasons: dict[str, str]) -> None:
        """Record, for each subject in `reasons`, the reason that the values in `columns` are missing."""
        for name, reason in reasons.items():
            self.unknown.setdefault(name, {}).update(dict.fromkeys(columns, reason))


def diagnose(
    session: Session, subjects: Sequence[Subject], modules: tuple[str, ...], known: Mapping[str, Proof] | None = None
) -> Diagnosis:
    """Measure memory and, in parallel, collect the proofs missing from `known`; neither result depends on wall time."""
    diagnosis, began = Diagnosis(proofs=dict(known or {})), time.perf_counter()
    unknown = [subject for subject in subjects if subject.name not in diagnosis.proofs]
    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(
            look, lambda part: session.measure_memory(part, modules, alone=not unknown), subjects, session.limit
        )
        proofs, unproven = look(lambda part: session.prove(part, modules), unknown, session.limit)
        diagnosis.proof_wall_s = time.perf_counter() - began
        memories, unmeasured = measuring.result()
    for memory in memories:
        diagnosis.memory |= memory.memory
        unmeasured |= memory.refused
    for proof in proofs:
        diagnosis.proofs |= proof.proofs
        unproven |= proof.refused
        if proof.unsampled:
            diagnosis.lack(_SAMPLED, dict.fromkeys(proof.proofs, proof.unsampled))
    diagnosis.lack(Memory.model_fields, unmeasured)
    diagnosis.lack(Proof.model_fields, unproven)
    return diagnosis


def look(
    measure: Callable[[Sequence[Subject]], R], subjects: Sequence[Subject], limit: Limit
) -> tuple[list[R], dict[str, str]]:
    """Measure all subjects in one process; if the process dies, measure each subject in a separate process.

    Return the reports, and the reason for each missing report, keyed by subject.
    """
    if not subjects:
        return [], {}
    try:
        return [measure(subjects)], {}
    except MeasurementError as error:
        if len(subjects) == 1 or limit.left_s() == 0:
            return [], {subject.name: str(error) for subject in subjects}
    # Use separate processes, so that a crash affects only one subject's report.
    reports: list[R] = []
    refused: dict[str, str] = {}
    for subject in subjects:
        more_reports, more_refused = look(measure, [subject], limit)
        reports += more_reports
        refused |= more_refused
    return reports, refused
