"""The rows of a benchmark: what was measured of each subject, with warm and with cold caches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.results import Setting
from tasks.benchmark.messages import COPY_SUFFIX, INCUMBENT_SUFFIX, Memory
from tasks.benchmark.protocol import Measured
from tasks.benchmark.statistics import percentiles
from tasks.results import Timing

_MARKED: dict[str, Setting] = {COPY_SUFFIX[1:]: "a/a", INCUMBENT_SUFFIX[1:]: "incumbent"}


def timings_of(
    measured: Measured,
    batch_size: int,
    setting: Setting,
    memory: dict[str, Memory],
    sequence_length: int | None = None,
) -> Iterator[Timing]:
    """One row for each subject; that of the baseline's copy has the setting ``a/a``."""
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
            # The first launch's loads include imports, which later launches do beforehand.
            load_s=float(np.median([report.load_s for report in reports[1:] or reports])),
            first_call_s=float(np.median([report.first_call_s for report in reports])),
            latency_p50_s=p50_s,
            latency_p90_s=p90_s,
            latency_p99_s=p99_s,
            threads_used=max(report.threads_used for report in reports),
            block_launch=_numbered(launches, rounds),
            block_round=tuple(range(1, rounds + 1)) * launches,
            block_s=tuple(blocks.ravel().tolist()),
            cold_launch=_numbered(launches, calls.shape[1]),
            cold_s=tuple(calls.ravel().tolist()),
            **(memory[name].model_dump() if name in memory else {}),
            **_ratios(warm, name, "", is_decided=is_decided),
            **_ratios(cold, name, "cold_", is_decided=is_decided),
        )


def _ratios(measured: Measured, name: str, prefix: str, *, is_decided: bool) -> dict[str, float | None]:
    """What compares a subject with others, by field of `Timing`."""
    ratio, over = measured.ratio(name), measured.over_incumbent(name)
    bounds = measured.bounds(name) if is_decided else None
    found: dict[str, float | None] = {
        "baseline_latency_s": float(np.median(measured.round_s(measured.baseline))),
        "speedup": ratio.value,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "speedup_bound_low": None if bounds is None else bounds.low,
        "speedup_bound_high": None if bounds is None else bounds.high,
        "over_incumbent": None if over is None else over.value,
        "over_incumbent_low": None if over is None else over.low,
        "over_incumbent_high": None if over is None else over.high,
    }
    return {f"{prefix}{column}": value for column, value in found.items()}


def _numbered(launches: int, rounds: int) -> tuple[int, ...]:
    return tuple(launch for launch in range(1, launches + 1) for _ in range(rounds))
