"""What stages measured: small frozen values that travel between tasks and become rows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.refs import ArtifactRef, Frozen


class Evaluation(Frozen):
    """Quality of one candidate.

    ``outputs`` refers to an artifact with ``golden.safetensors`` (the timed inputs and the outputs that the evaluated
    model gave for them) and ``samples.safetensors`` (per-sample results for paired comparisons). ``metrics`` holds
    every number that was computed, ``quality`` the one that the gate looks at.
    """

    recipe: str
    runtime: str
    quality_metric: str
    quality: float
    higher_is_better: bool
    metrics: dict[str, float]
    mode: str = ""
    samples: int
    outputs: ArtifactRef


class Comparison(Frozen):
    """A candidate's quality against the baseline's on the same samples; difference = candidate - baseline."""

    quality_difference: float
    quality_difference_low: float | None = None
    quality_difference_high: float | None = None
    agreement: float | None = None


class LayerSensitivity(Frozen):
    """Signal to quantization noise of one quantized module's output against float on the same input, in dB.

    ``rank`` is 1 for the module that loses most. ``kept_float_quality`` is the quality with this module and every worse
    one kept float, where that was evaluated.
    """

    recipe: str
    module: str
    type: str
    sqnr_db: float
    rank: int
    kept_float_quality: float | None = None


class Timing(Frozen):
    """One candidate (or further setting of it) as timed; ``speedup`` = baseline latency ÷ candidate latency.

    ``block_launch``, ``block_round`` and ``block_s`` are the raw samples: launch number, round number and seconds per
    call in each timed block, in the order in which they were taken. Percentiles come from single calls and are None
    where there are too few.
    """

    recipe: str
    runtime: str
    setting: Literal["primary", "throughput", "a/a"]
    threads: int
    batch_size: int
    latency_s: float
    latency_q25_s: float
    latency_q75_s: float
    baseline_latency_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    blocks: int
    calls_per_block: int
    load_s: float
    first_call_s: float
    latency_p50_s: float | None = None
    latency_p90_s: float | None = None
    latency_p99_s: float | None = None
    rss_loaded_bytes: int | None = None
    peak_rss_bytes: int | None = None
    block_launch: tuple[int, ...] = ()
    block_round: tuple[int, ...] = ()
    block_s: tuple[float, ...] = ()


class BenchmarkResult(Frozen):
    """All timings of one workload, with the A/A check and the machine's state; one per attempt.

    ``refused`` maps ``recipe/runtime`` to the reason why it was not timed (its output was wrong, it did not load).
    """

    workload: str
    baseline: str
    profile: str
    attempt: int = 1
    verdict: Literal["valid", "inconclusive"]
    aa_ratio: float
    aa_low: float
    aa_high: float
    fingerprint: str
    timings: tuple[Timing, ...]
    refused: dict[str, str] = Field(default_factory=dict)
    evidence_before: str
    evidence_after: str
    wall_s: float
    timed_s: float
