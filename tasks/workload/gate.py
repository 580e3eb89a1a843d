"""The keys of ``[gate]`` and ``[search]``; a search uses the gate's bounds and objective by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, WithJsonSchema

from storage.results import QualityUnit
from tasks.workload.base import Section
from tasks.workload.recipe import METHODS, RuntimeName

# Largest allowed difference between a row's outputs with and without batching, as a fraction of the output's range.
# Shared activation ranges cause differences of about 3e-3; float rounding causes smaller differences.
BATCH_TOLERANCE = 1e-4

Objective = Literal["fastest", "smallest"]
MethodName = Annotated[str, AfterValidator(METHODS.known), WithJsonSchema({"type": "string", "enum": list(METHODS)})]


class Gate(Section):
    """Rules that a candidate must pass to be promoted; a rule applies only if its key is set.

    The gate compares the worse end of each measured interval with the bounds on quality and speed.
    """

    objective: Objective = "fastest"
    """Criterion for choosing among the candidates that pass."""
    quality_drop: Literal["absolute", "relative"] = "absolute"
    """Unit of `max_quality_drop`: the unit of the metric, or a fraction of the baseline's quality."""
    max_quality_drop: float | None = Field(default=None, ge=0)
    """Maximum quality loss relative to the baseline.

    If lower values of the metric are better, an increase counts as a loss.
    """
    min_size_ratio: PositiveFloat | None = None
    """Minimum required ratio of the baseline's size to the candidate's size."""
    min_speedup: PositiveFloat | None = None
    """Minimum required ratio of the baseline's latency to the candidate's latency."""
    min_over_best_float: float | None = Field(default=None, ge=0)
    """Minimum required ratio of the latency of the night's fastest deployable float candidate to the latency of a
    quantized candidate.

    The default is 1.0 if `objective` is `fastest`; otherwise, the rule does not apply. 0 turns the rule off.
    """
    max_peak_rss_bytes: PositiveInt | None = None
    """Maximum allowed peak memory of the candidate's process, in bytes."""
    min_coverage: float | None = Field(default=None, ge=0, le=1)
    """Minimum required fraction of the model's parameters that belong to quantized modules."""
    min_int8_time_share: float | None = Field(default=None, ge=0, le=1)
    """Minimum required fraction of operator time spent in int8, according to the runtime's own profiler."""
    max_saturation: float | None = Field(default=None, ge=0, le=1)
    """Maximum allowed output change due to saturation, as a fraction of the output's range."""
    require_batch_invariance: bool = False
    """Whether a row must have the same output in a batch as in a separate call."""
    margin: float = Field(default=1.0, ge=1)
    """Factor by which a candidate must improve on the current bundle's speed or size, depending on `objective`."""

    @property
    def over_best_float(self) -> float | None:
        """The bound of the rule `min_over_best_float`, or None if the rule does not apply."""
        default = 1.0 if self.objective == "fastest" else None
        return default if self.min_over_best_float is None else self.min_over_best_float or None

    @property
    def max_batch_difference(self) -> float | None:
        """The bound of the rule `max_batch_difference`, or None if the rule does not apply."""
        return BATCH_TOLERANCE if self.require_batch_invariance else None


@dataclass(frozen=True)
class Goal:
    """The objective of a search, and the bounds on its results; a bound that is not set is None."""

    objective: Objective
    max_quality_drop: float
    quality_unit: QualityUnit
    min_speedup: float | None = None
    min_size_ratio: float | None = None


class Search(Section):
    """Settings for the recipe search; an omitted or empty list allows every value that the host supports."""

    budget_s: PositiveFloat = 1800
    """Maximum duration of a search, in seconds."""
    objective: Objective | None = None
    """Criterion for choosing the best recipe; the default is the gate's `objective`."""
    max_quality_drop: float | None = Field(default=None, ge=0)
    """Maximum allowed quality loss on the selection split; the default is the gate's `max_quality_drop`."""
    quality_drop: QualityUnit | None = None
    """Unit of `max_quality_drop`; the default is the gate's `quality_drop`."""
    finalists: PositiveInt = 3
    """Maximum number of recipes that a search adds to the workload for evaluation on the test split."""
    methods: tuple[MethodName, ...] = ()
    """Methods to try. `qat` is tried only if it is listed here, because it trains the model."""
    runtimes: tuple[RuntimeName, ...] = ()
    """Runtimes to try. Runtimes whose files cannot be deployed are tried only if they are listed here."""
    exclude: tuple[str, ...] = ()
    """Paths of modules that stay in float in every recipe."""
    keep_float: bool = True
    """Whether to try recipes that keep some layers in float."""

    def goal(self, gate: Gate) -> Goal:
        """Return the search's objective and bounds, with the gate's values for missing keys."""
        bound = gate.max_quality_drop if self.max_quality_drop is None else self.max_quality_drop
        if bound is None:
            raise ValueError("[search] needs a limit on the quality loss; set max_quality_drop in [search] or [gate]")
        objective = self.objective or gate.objective
        return Goal(
            objective=objective,
            max_quality_drop=bound,
            quality_unit=self.quality_drop or gate.quality_drop,
            # By default, a recipe must not be slower than the baseline, except if the objective is "smallest".
            min_speedup=1.0 if objective != "smallest" and gate.min_speedup is None else gate.min_speedup,
            min_size_ratio=gate.min_size_ratio,
        )
