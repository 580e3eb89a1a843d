"""What stages measured: small frozen values that travel between tasks; no torch.

A field of `Evaluation`, `Comparison`, `Timing` or `tasks.proof.messages.Proof` that has the name of a column of
``measurements`` is recorded in it (`tasks.rows`).
"""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import Field

from storage.results import Setting
from tasks.job import Job
from tasks.proofs import Proof
from tasks.refs import ArtifactRef, CandidateRef, DatasetRef, Frozen, ModuleCoverage
from tasks.workload.workload import Workload

# What per-sample contributions to a quality are: independent numbers, 100 (right) or 0 (wrong), consecutive places of
# one series whose neighbours depend on each other, or, of a quality that is no mean, itself on resamples of the samples
# that are the same for every candidate.
Contributions = Literal["independent", "right-or-wrong", "serial", "resampled"]


class Evaluation(Frozen):
    """Quality of one candidate.

    ``outputs`` refers to an artifact with ``golden.safetensors`` (the timed inputs and the outputs that the evaluated
    model gave for them) and ``samples.safetensors`` (per-sample results for paired comparisons). ``metrics`` holds
    every number that was computed, ``quality`` the one that the gate looks at: as a deployed model is called.
    ``quality_batched`` is the same with an evaluation's rows together in a call; it differs only where rows share the
    ranges of their activations. ``batch_difference`` and ``batch_changed`` are those of `tasks.proof.golden.Batching`.
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

    The ends ``_low`` and ``_high`` of ``speedup`` are those of its 95% interval; its bounds and those of
    ``over_incumbent`` (the incumbent's latency ÷ the candidate's) are what the gate decides by. Numbers that begin with
    ``cold_`` are of calls with cold caches, all others of warm ones.

    ``block_launch``, ``block_round`` and ``block_s`` are the raw samples: launch number, round number and seconds per
    call in each timed block, in the order in which they were taken; ``cold_launch`` and ``cold_s`` those of the calls
    with cold caches, one a round. Percentiles come from single calls and are None where there are too few.
    ``threads_used`` is the most threads that it kept busy in any launch, ``sequence_length`` the steps of a further
    setting that has others than the primary one.
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

    ``refused`` maps ``recipe/runtime`` to the reason why it was not timed (its output was wrong, it did not load);
    ``proofs`` maps the subjects' names to what they executed, ``unknown`` maps them to the columns of ``measurements``
    that have no value although they were timed, each with the reason.
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

    ``candidate`` holds the bundle's own files: an artifact of them, or tonight's candidate that is the same to the
    byte, which ``same_as`` then names. It is None if the files cannot be used, and ``fault`` says what is wrong with
    them. ``failure`` is a stage that failed on good files (it was killed, say), which leaves the bundle's quality and
    speed unknown. ``made_as`` is the digest of the candidate that was packaged, ``coverage`` the share of its
    parameters that were quantized, and ``outdated`` says why the workload no longer asks for it.
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
    """A current bundle that could not be looked up; ``reason`` says why, and ``version`` is "" if that is unknown, too.

    None stands for the opposite: it is certain that there is no current bundle.
    """

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


class CandidatePreview(Frozen):
    """What trying a candidate out showed: ``obstacle`` says why it cannot be had, ``coverage`` what would stay float.

    ``exported_only``: it was not made, which takes minutes, but the float model can be exported for it.
    """

    candidate: str
    obstacle: str = ""
    exported_only: bool = False
    coverage: tuple[ModuleCoverage, ...] = ()


class Preview(Frozen):
    """What trying a workload out showed; what could not be found out because of its ``problems`` is empty.

    ``inputs`` and ``outputs`` are those of one call; ``methods`` and ``runtimes`` say why one does not fit or is not
    there, "" where it does or is. ``tracebacks`` are those of problems that nobody foresaw, for ``--debug``.
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
    candidates: tuple[CandidatePreview, ...] = ()


class RunInfo(Frozen):
    """What every row of a run has in common."""

    run_id: str
    night: date
    profile: str
