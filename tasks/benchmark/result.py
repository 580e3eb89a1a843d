"""From what the launches measured to the rows that are recorded."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tasks.benchmark.messages import COPY_SUFFIX, Memory
from tasks.benchmark.protocol import Measured
from tasks.benchmark.statistics import Ratio, percentiles, speed_ratio
from tasks.results import Timing

Setting = Literal["primary", "throughput", "a/a"]

# An A/A interval wider than this to either side says that the machine is too noisy to tell small differences.
WIDEST = 0.05


def aa_ratio(measured: Measured, baseline: str) -> Ratio:
    """The baseline against the copy of itself."""
    return speed_ratio(measured.block_s(baseline + COPY_SUFFIX), measured.block_s(baseline))


def verdict_of(aa: Ratio) -> Literal["valid", "inconclusive"]:
    """Inconclusive where the interval of the A/A ratio excludes 1 or is wider than ±5%."""
    wide = aa.low < 1 - WIDEST or aa.high > 1 + WIDEST
    return "inconclusive" if wide or aa.excludes_one else "valid"


def timings_of(
    measured: Measured, baseline: str, threads: int, batch_size: int, memory: dict[str, Memory], setting: Setting
) -> list[Timing]:
    """One row for each subject; the baseline's copy gives the row with the setting ``a/a``."""
    return [
        _timing(measured, name, baseline, threads, batch_size, memory.get(name), setting) for name in measured.names()
    ]


def _timing(
    measured: Measured,
    name: str,
    baseline: str,
    threads: int,
    batch_size: int,
    memory: Memory | None,
    setting: Setting,
) -> Timing:
    reports, blocks, reference = measured.of(name), measured.block_s(name), measured.block_s(baseline)
    ratio = Ratio(1.0, 1.0, 1.0) if name == baseline else speed_ratio(blocks, reference)
    quartiles = np.quantile(blocks, [0.25, 0.5, 0.75])
    single = percentiles(measured.single_s(name))
    recipe, runtime = split_name(name)
    launches, rounds = blocks.shape
    return Timing(
        recipe=recipe,
        runtime=runtime,
        setting="a/a" if name.endswith(COPY_SUFFIX) else setting,
        threads=threads,
        batch_size=batch_size,
        latency_s=float(quartiles[1]),
        latency_q25_s=float(quartiles[0]),
        latency_q75_s=float(quartiles[2]),
        baseline_latency_s=float(np.median(reference)),
        speedup=ratio.value,
        speedup_low=ratio.low,
        speedup_high=ratio.high,
        blocks=blocks.size,
        calls_per_block=reports[0].calls_per_block,
        # The first launch's loads include imports, which later launches do beforehand.
        load_s=float(np.median([report.load_s for report in reports[1:] or reports])),
        first_call_s=float(np.median([report.first_call_s for report in reports])),
        latency_p50_s=single.p50_s,
        latency_p90_s=single.p90_s,
        latency_p99_s=single.p99_s,
        rss_loaded_bytes=memory.rss_loaded_bytes if memory else None,
        peak_rss_bytes=memory.peak_rss_bytes if memory else None,
        block_launch=tuple(launch + 1 for launch in range(launches) for _ in range(rounds)),
        block_round=tuple(number + 1 for _ in range(launches) for number in range(rounds)),
        block_s=tuple(blocks.ravel().tolist()),
    )


def split_name(name: str) -> tuple[str, str]:
    """Recipe and runtime of ``recipe/runtime``."""
    recipe, _, runtime = name.removesuffix(COPY_SUFFIX).partition("/")
    return recipe, runtime
