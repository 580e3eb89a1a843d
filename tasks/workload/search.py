"""The keys of ``[search]``: a time budget, an objective, a quality bound, and restrictions on the recipes to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, WithJsonSchema

from storage.results import QualityUnit
from tasks.workload.base import Section
from tasks.workload.gate import Gate, Objective
from tasks.workload.recipe import METHODS, RuntimeName

MethodName = Annotated[str, AfterValidator(METHODS.known), WithJsonSchema({"type": "string", "enum": list(METHODS)})]


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
            raise ValueError("[search] needs a limit for the quality loss; set max_quality_drop in [search] or [gate]")
        objective = self.objective or gate.objective
        return Goal(
            objective=objective,
            max_quality_drop=bound,
            quality_unit=self.quality_drop or gate.quality_drop,
            # By default, a recipe must not be slower than the baseline, except if the objective is "smallest".
            min_speedup=1.0 if objective != "smallest" and gate.min_speedup is None else gate.min_speedup,
            min_size_ratio=gate.min_size_ratio,
        )
