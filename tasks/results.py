"""What stages measured: small frozen values that travel between tasks; no torch.

A field of `Evaluation`, `Comparison`, `Timing` or `tasks.proof.messages.Proof` that has the name of a column of
``measurements`` is recorded in it (`tasks.rows`).
"""

from __future__ import annotations

import json
from datetime import date
from typing import Literal

from pydantic import Field

from storage.results import Setting
from tasks.job import Job
from tasks.proofs import Proof
from tasks.refs import ArtifactRef, CandidateRef, DatasetRef, Frozen, ModuleCoverage
from tasks.workload.workload import Workload

# What per-sample contributions to a quality are: independent numbers, 100 (right) or 0 (wrong), places of one series
# whose neighbours depend on each other, or the quality itself on resamples that are the same for every candidate.
Contributions = Literal["independent", "right-or-wrong", "serial", "resampled"]


class Proposal(Frozen):
    """Keys that a drafted workload file gets, by section, and why: ``reasons`` by ``section.key``."""

    sections: dict[str, dict[str, object]] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)


class Evaluation(Frozen):
    """Quality of one candidate; ``quality`` is the one of all ``metrics`` that the gate looks at.

    ``quality_batched`` is the same with rows together in a call; it differs only if rows share the ranges of their
    activations. ``batch_difference`` and ``batch_changed`` are those of `tasks.proof.golden.Batching`. ``outputs`` is
    an artifact with golden tensors (the timed inputs, and what the evaluated model returned) and per-sample results.
    """

    recipe: str
    runtime: str
    quality_metric: str
    quality: float
    higher_is_better: bool
    metrics: dict[str, float]
    mode: str = ""
    quality_batched: float
    samples: int
    contributions: Contributions = "independent"
    batch_difference: float | None = None
    batch_changed: float | None = None
    outputs: ArtifactRef


class Comparison(Frozen):
    """A candidate's quality against the baseline's on the same samples; difference = candidate - baseline."""

    quality_difference: float
    quality_difference_low: float | None = None
    quality_difference_high: float | None = None
    agreement: float | None = None


class LayerSensitivity(Frozen):
    """A quantized module's signal to noise ratio and rank (1: loses most), and quality with all from there float."""

    recipe: str
    module: str
    type: str
    sqnr_db: float
    rank: int
    kept_float_quality: float | None = None


class Timing(Frozen):
    """One candidate (or further setting of it) as timed; ``speedup`` = baseline latency ÷ candidate latency.

    The ends of ``speedup`` are those of its 95% interval. The gate decides by its bounds, and by those of
    ``over_incumbent`` (the incumbent's latency ÷ the candidate's). ``cold_`` numbers are of calls with cold caches.
    Percentiles come from single calls, and are None if there are too few. ``block_launch``,
    ``block_round`` and ``block_s`` (seconds per call), and with cold caches ``cold_launch`` and ``cold_s``, are the raw
    samples in the order in which they were taken. ``threads_used`` is the most threads that it kept busy in
    any launch; ``sequence_length`` is None unless the setting has another than the primary one.
    """

    recipe: str
    runtime: str
    setting: Setting
    threads: int
    batch_size: int
    sequence_length: int | None = None
    latency_s: float
    latency_q25_s: float
    latency_q75_s: float
    baseline_latency_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    speedup_bound_low: float | None = None
    speedup_bound_high: float | None = None
    over_incumbent: float | None = None
    over_incumbent_low: float | None = None
    over_incumbent_high: float | None = None
    cold_latency_s: float
    cold_baseline_latency_s: float
    cold_speedup: float
    cold_speedup_low: float
    cold_speedup_high: float
    cold_speedup_bound_low: float | None = None
    cold_speedup_bound_high: float | None = None
    cold_over_incumbent: float | None = None
    cold_over_incumbent_low: float | None = None
    cold_over_incumbent_high: float | None = None
    threads_used: float
    launches: int
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
    cold_launch: tuple[int, ...] = ()
    cold_s: tuple[float, ...] = ()


class BenchmarkResult(Frozen):
    """All timings of one workload, with the A/A check and the machine's state.

    ``refused`` maps ``recipe/runtime`` to why it was not timed, ``proofs`` the subjects' names to what they executed,
    and ``unknown`` to the columns of ``measurements`` without a value although they were timed, each with the reason.
    """

    workload: str
    baseline: str
    profile: str
    verdict: Literal["valid", "inconclusive"]
    aa_ratio: float
    aa_low: float
    aa_high: float
    cold_aa_ratio: float
    cold_aa_low: float
    cold_aa_high: float
    fingerprint: str
    timings: tuple[Timing, ...]
    refused: dict[str, str] = Field(default_factory=dict)
    proofs: dict[str, Proof] = Field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = Field(default_factory=dict)
    evidence_before: str
    evidence_after: str
    wall_s: float
    timed_s: float

    @property
    def resolution(self) -> float:
        """How far from 1 the interval of the A/A check reaches: smaller differences cannot be told."""
        return max(self.aa_high - 1, 1 - self.aa_low)


class Failure(Frozen):
    """Why a candidate has no result: the stage that failed and its message; ``skipped`` where this machine lacks
    what it needs, which is nobody's failure.
    """

    stage: str
    error: str
    skipped: bool = False


class CandidateResult(Frozen):
    """What one candidate's stages returned, as far as they came."""

    recipe: str
    runtime: str
    built: CandidateRef | None = None
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None
    failure: Failure | None = None


class Incumbent(Frozen):
    """The current bundle, which was looked up, and the results of tonight's stages on it.

    ``candidate`` is an artifact of the bundle's own files, or tonight's candidate that is the same to the byte, which
    ``same_as`` then names; it is None if the files cannot be used, and ``fault`` says why. ``failure`` is a stage that
    failed on good files, which leaves the bundle's quality and speed unknown. ``made_as`` is the digest of the
    candidate that was packaged, ``coverage`` its quantized share; ``outdated`` says why the workload no longer asks for
    it.
    """

    version: str
    candidate: CandidateRef | None = None
    made_as: str = ""
    same_as: str = ""
    outdated: str = ""
    fault: str = ""
    coverage: float | None = None
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None
    failure: Failure | None = None


class UnknownIncumbent(Frozen):
    """A current bundle that could not be looked up; None would mean that there is certainly none."""

    reason: str
    version: str = ""


class WorkloadResult(Frozen):
    """The results of one workload's stages; ``incumbent`` is None if the workload has no current bundle."""

    workload: Workload
    dataset: DatasetRef | None = None
    job: Job[Workload] | None = None
    candidates: tuple[CandidateResult, ...]
    incumbent: Incumbent | UnknownIncumbent | None = UnknownIncumbent(reason="it was not looked up")
    benchmark: BenchmarkResult | None = None
    sensitivities: tuple[LayerSensitivity, ...] = ()

    def baseline(self) -> CandidateResult | None:
        """The baseline's own result, where the recipe is in the run."""
        recipe, runtime = self.workload.baseline()
        return next((each for each in self.candidates if (each.recipe, each.runtime) == (recipe, runtime)), None)


NOTICED_LOSS = 0.01  # as a share of the float model's quality


class QualityLoss(Frozen):
    """What a candidate loses on some test samples: ``share`` of the float model's quality, more than chance explains.

    ``layers`` lose most, in torch's conversion if that ``ranks_for`` a runtime that quantizes by itself. ``exclude`` is
    the recipe's key that keeps them float, and ``share_left`` the loss then, None if that could not be measured.
    """

    metric: str
    higher_is_better: bool
    share: float
    samples: int
    layers: tuple[str, ...] = ()
    ranks_for: str = ""
    exclude: tuple[str, ...] = ()
    share_left: float | None = None

    def describe(self) -> str:
        """Say how much is lost, where, and what to do."""
        lost = f"loses {self.share:.1%} of" if self.higher_is_better else f"is {self.share:.1%} worse in"
        text = f"{lost} {self.metric} on {self.samples:,} samples"
        if self.layers:
            where = " in torch's conversion" if self.ranks_for else ""
            text += f"; the layers that lose most{where}: {', '.join(self.layers)}"
            text += f". Keep them float: exclude = {json.dumps(self.exclude)}"
        if self.share_left is not None:
            text += f", which leaves a loss of {max(0.0, self.share_left):.1%}"
        if self.share_left is not None and self.share_left > NOTICED_LOSS:
            text += "; exclude more of those that `nightquant sensitivity` ranks"
        return f"{text}."


class CandidatePreview(Frozen):
    """What trying a candidate showed: why it cannot be had, or its coverage; slow ones are ``exported_only``.

    ``loss`` is None if no loss was noticed.
    """

    candidate: str
    obstacle: str = ""
    exported_only: bool = False
    coverage: tuple[ModuleCoverage, ...] = ()
    loss: QualityLoss | None = None


class Preview(Frozen):
    """What trying a workload out showed; what could not be found out because of its ``problems`` is empty.

    ``methods`` and ``runtimes`` say why one does not fit or is missing, or ""; ``tracebacks`` are for ``--debug``.
    """

    workload: str
    problems: tuple[str, ...] = ()
    tracebacks: tuple[str, ...] = Field(default=(), exclude=True)
    splits: dict[str, int] = Field(default_factory=dict)
    data_notes: tuple[str, ...] = ()
    checkpoint: str = ""
    notes: tuple[str, ...] = ()
    methods: dict[str, str] = Field(default_factory=dict)
    runtimes: dict[str, str] = Field(default_factory=dict)
    model: str = ""
    parameters: int = 0
    inputs: str = ""
    outputs: str = ""
    metric: str = ""
    is_percentage: bool = False
    candidates: tuple[CandidatePreview, ...] = ()


class RunInfo(Frozen):
    """What every row of a run has in common."""

    run_id: str
    night: date
    profile: str
