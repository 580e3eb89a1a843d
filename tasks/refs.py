"""What travels between tasks: small frozen references and numbers, never tensors or file contents."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.workload.recipe import Runtime


class Frozen(BaseModel):
    """A small immutable value that crosses task boundaries as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ArtifactRef(Frozen):
    """An artifact in the store by kind and digest."""

    kind: str
    digest: str


class DatasetRef(ArtifactRef):
    """A prepared data set.

    ``splits`` gives the number of samples (tokens for text) per split, ``classes`` the number of labels (0 for text),
    ``vocabulary`` the number of words (0 for images), ``sample_shape`` the shape of one sample without the batch axis.
    ``calibration_digest`` is the SHA-256 of the list of calibration samples ("" where there is none).
    """

    splits: dict[str, int]
    classes: int = 0
    vocabulary: int = 0
    sample_shape: tuple[int, ...] = ()
    calibration_digest: str = ""
    skipped: int = 0


class CheckpointRef(ArtifactRef):
    """Float weights: ``weights.safetensors`` in the artifact; ``parameters`` is the number of scalars."""

    parameters: int


class ModuleCoverage(Frozen):
    """Whether one leaf module was quantized, and why not where it was not."""

    module: str
    type: str
    parameters: int
    quantized: bool
    reason: str = ""


class QuantizedRef(ArtifactRef):
    """One recipe's result: a folder that `tasks.quantize.load` opens for each of its runtimes.

    ``size_bytes`` is per runtime: bytes of the serialized state (``torch.save`` of the state dict for eager, the
    TorchScript file for torchscript). ``flow`` is the flow that was taken: eager, fx, or "" where there is no choice.
    """

    recipe: str
    method: Literal["none", "dynamic", "static", "qat"]
    engine: str
    flow: str = ""
    size_bytes: dict[Runtime, int]
    coverage: tuple[ModuleCoverage, ...] = ()

    @property
    def covered_share(self) -> float:
        """Share of the parameters that lie in quantized modules; 0 where the model has none."""
        total = sum(module.parameters for module in self.coverage)
        return sum(module.parameters for module in self.coverage if module.quantized) / total if total else 0.0


class Evaluation(Frozen):
    """Quality of one candidate.

    ``outputs`` refers to an artifact with ``golden.safetensors`` (the timed inputs and the outputs that the evaluated
    model gave for them) and ``samples.safetensors`` (per-sample results for paired comparisons). ``metrics`` holds
    every number that was computed, ``quality`` the one that the gate looks at.
    """

    recipe: str
    runtime: Runtime
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
    runtime: Runtime
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
    refused: dict[str, str] = {}
    evidence_before: str
    evidence_after: str
    wall_s: float
    timed_s: float
