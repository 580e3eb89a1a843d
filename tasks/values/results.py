"""Results of the stages, as small frozen values that are passed between tasks; this module does not import torch.

`tasks.decide.rows` copies fields to the ``measurements`` columns of the same name.
"""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import ConfigDict, Field

from storage.results import Scenario, Setting
from tasks.values.job import Job
from tasks.values.proofs import Proof
from tasks.values.refs import ArtifactRef, CandidateRef, DatasetRef, Frozen, ModuleCoverage, OfCandidate
from tasks.workload.recipe import CandidateName
from tasks.workload.workload import Workload

# Ways to compute a quality score from samples. An independent sample contributes one number. A right answer contributes
# 100, and a wrong answer contributes 0. In a series, neighbouring values are dependent. If a quality is not a mean, one
# quality is computed for each resample; all candidates use the same resamples.
Contributions = Literal["independent", "right-or-wrong", "serial", "resampled"]


class Proposal(Frozen):
    """Proposed keys for a new workload file, grouped by section, with reasons keyed by ``section.key``."""

    sections: dict[str, dict[str, object]] = Field(default_factory=dict)
    reasons: dict[str, str] = Field(default_factory=dict)


class Evaluation(OfCandidate):
    """The quality of one candidate; ``quality`` is the metric value that the gate uses."""

    # Write ``NaN`` and ``Infinity`` to JSON, because ``null`` means that the batch difference was not measured.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    quality_metric: str
    quality: float
    higher_is_better: bool
    metrics: dict[str, float]
    mode: str = ""
    quality_batched: float  # with several rows per call; it differs only if rows share activation ranges
    samples: int
    contributions: Contributions = "independent"
    batch_difference: float | None = None
    batch_changed: float | None = None
    constant_quality: float | None = None  # quality of the best constant answer
    outputs: ArtifactRef  # golden tensors and per-sample results

    @property
    def beats_constant(self) -> bool:
        """Whether the quality is better than the quality of the best constant answer, or the latter is unknown."""
        constant, sign = self.constant_quality, 1 if self.higher_is_better else -1
        return constant is None or sign * (self.quality - constant) > 0


class Comparison(Frozen):
    """A candidate's quality minus the baseline's quality, on the samples that the baseline was evaluated on."""

    quality_difference: float
    quality_difference_low: float | None = None
    quality_difference_high: float | None = None
    agreement: float | None = None


class LayerSensitivity(Frozen):
    """A quantized layer's signal-to-noise ratio and rank; the layer with rank 1 has the lowest ratio."""

    recipe: str
    module: str
    type: str
    sqnr_db: float
    rank: int


class Timing(OfCandidate):
    """One candidate's timing in one setting, with the columns of ``measurements``."""

    setting: Setting
    threads: int
    batch_size: int
    latency_s: float
    latency_q25_s: float
    latency_q75_s: float
    baseline_latency_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    speedup_bound_low: float | None = None
    speedup_bound_high: float | None = None
    over_current: float | None = None
    over_current_low: float | None = None
    over_current_high: float | None = None
    runtime_gain: float | None = None
    runtime_gain_low: float | None = None
    runtime_gain_high: float | None = None
    int8_gain: float | None = None
    int8_gain_low: float | None = None
    int8_gain_high: float | None = None
    best_float: str | None = None
    over_best_float: float | None = None
    over_best_float_low: float | None = None
    over_best_float_high: float | None = None
    over_best_float_bound_low: float | None = None
    over_best_float_bound_high: float | None = None
    cold_latency_s: float
    cold_baseline_latency_s: float
    cold_speedup: float
    cold_speedup_low: float
    cold_speedup_high: float
    cold_speedup_bound_low: float | None = None
    cold_speedup_bound_high: float | None = None
    cold_over_current: float | None = None
    cold_over_current_low: float | None = None
    cold_over_current_high: float | None = None
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


class ServedCapacity(Frozen):
    """The host's capacity when serving one candidate, with the columns of ``measurements``."""

    capacity_scenario: Scenario
    capacity_rps: float
    capacity_ratio: float
    capacity_ratio_low: float
    capacity_ratio_high: float
    capacity_p50_s: float | None = None
    capacity_p99_s: float | None = None
    capacity_split: str
    capacity_limit: str = ""


class BenchmarkResult(Frozen):
    """All timings of one workload, with the A/A check and the host's state."""

    verdict: Literal["valid", "inconclusive"]
    aa_ratio: float
    aa_low: float
    aa_high: float
    cold_aa_ratio: float
    cold_aa_low: float
    cold_aa_high: float
    fingerprint: str
    timings: tuple[Timing, ...]
    refused: dict[str, str] = Field(default_factory=dict)  # why a subject was not timed
    proofs: dict[str, Proof] = Field(default_factory=dict)
    capacities: dict[str, ServedCapacity] = Field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = Field(default_factory=dict)  # reasons, by subject and column
    evidence_before: str
    evidence_after: str


class Failure(Frozen):
    """The error that stopped a candidate in a stage."""

    stage: str
    error: str
    skipped: bool = False  # whether this host cannot run the candidate
    unheard: bool = False  # whether Prefect's server did not answer, so that the outcome of the stage is unknown


class CandidateResult(OfCandidate):
    """The results of one candidate's stages, up to the first failure."""

    built: CandidateRef | None = None
    evaluation: Evaluation | None = None
    comparison: Comparison | None = None
    failure: Failure | None = None


class CurrentBundle(Frozen):
    """The current bundle, as it was found.

    ``candidate`` is an artifact with the bundle's own files, or tonight's candidate ``same_as`` with the same files. If
    the files cannot be used, ``candidate`` is None and ``fault`` is the reason. ``withdrawn`` contains tonight's
    candidates from which users rolled back.
    """

    version: str
    candidate: CandidateRef | None = None
    made_as: str = ""  # digest of the packaged candidate
    same_as: CandidateName | None = None
    outdated: str = ""  # says that the checkpoint has changed since
    fault: str = ""
    coverage: float | None = None
    withdrawn: tuple[CandidateName, ...] = ()


class UnknownBundle(Frozen):
    """A current bundle that may exist, but could not be looked up."""

    reason: str
    version: str = ""


class WorkloadResult(Frozen):
    """The results of one workload's stages; ``current`` is None if the workload has no current bundle.

    ``bundle`` has the results of the current bundle's own files, unless they are identical to a candidate's files.
    """

    workload: Workload
    dataset: DatasetRef | None = None
    job: Job[Workload] | None = None
    candidates: tuple[CandidateResult, ...]
    current: CurrentBundle | UnknownBundle | None = UnknownBundle(
        reason="it was not looked up, because the workload's data or weights are missing"
    )
    bundle: CandidateResult | None = None
    benchmark: BenchmarkResult | None = None
    sensitivities: tuple[LayerSensitivity, ...] = ()

    def subjects(self) -> tuple[CandidateResult, ...]:
        """Return the candidates, and the current bundle's own files."""
        return self.candidates if self.bundle is None else (*self.candidates, self.bundle)

    def baseline(self) -> CandidateResult | None:
        """Return the baseline's result, or None if the run does not include the baseline's recipe."""
        return next((result for result in self.candidates if result.name == self.workload.baseline_name), None)


_NEARLY_NOTHING = 1e-4  # errors up to this fraction of a constant answer's error are nearly 0
NOTICED_LOSS = 0.01  # losses up to this fraction of the float model's quality are not reported


class QualityLoss(Frozen):
    """A candidate's significant loss on test samples; ``share`` is the lost fraction of `Reference.unit`."""

    metric: str
    higher_is_better: bool
    before: float
    after: float
    share: float
    samples: int

    def describe(self) -> str:
        """Describe the loss, and the command that ranks the layers."""
        # A percentage says nothing if the float model's quality is nearly 0.
        if abs(self.after - self.before) > abs(self.before):
            lost = f"changes {self.metric} from {self.before:.3g} to {self.after:.3g}"
        elif self.higher_is_better:
            lost = f"loses {self.share:.1%} of {self.metric}"
        else:
            lost = f"is {self.share:.1%} worse in {self.metric}"
        return f"{lost} on {self.samples:,} samples. To find the layers that lose most: nightquant sensitivity."


class Reference(Frozen):
    """The user's float model in plain torch, evaluated on a sample of the test split at ``row_s`` seconds per row."""

    candidate: CandidateRef = Field(exclude=True)
    row_s: float
    evaluation: Evaluation

    def describe(self) -> str:
        """Describe the float model's quality in one sentence."""
        found = self.evaluation
        return f"The float model has {found.quality_metric} {found.quality:.4g} on {found.samples:,} test samples."

    @property
    def is_nearly_perfect(self) -> bool:
        """Whether an error is so close to 0, compared with a constant answer's error, that a fraction says nothing."""
        found, constant = self.evaluation, self.evaluation.constant_quality
        is_error = constant is not None and not found.higher_is_better
        return is_error and abs(found.quality) <= _NEARLY_NOTHING * abs(constant or 0.0)

    @property
    def unit(self) -> float:
        """Quality of which losses are fractions: the constant answer's if the float model's is nearly 0."""
        found = self.evaluation
        return abs((found.constant_quality if self.is_nearly_perfect else None) or found.quality)


class CandidatePreview(Frozen):
    """The result of trying out a candidate: coverage and loss, or the ``obstacle`` that prevented the trial."""

    candidate: CandidateName
    obstacle: str = ""
    exported_only: bool = False  # because building takes minutes
    uncompared: str = ""  # why the comparison is missing
    undecided: str = ""  # says that the test split has too few samples for the gate's bound
    built: CandidateRef | None = None
    coverage: tuple[ModuleCoverage, ...] = ()
    loss: QualityLoss | None = None


class Preview(Frozen):
    """The result of trying out a workload; fields are empty if ``problems`` prevented their computation.

    ``methods`` and ``runtimes`` map each name to the reason that it is unavailable, or to ``""``.
    """

    workload: str
    problems: tuple[str, ...] = ()
    tracebacks: tuple[str, ...] = ()
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
    reference: Reference | None = None
    job: Job[Workload] | None = Field(default=None, exclude=True)


class RunInfo(Frozen):
    """The values that are the same in all rows of a run."""

    run_id: str
    night: date
    profile: str
