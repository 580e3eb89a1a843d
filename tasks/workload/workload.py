"""A workload: one TOML file that says what to quantize, how, and what may be promoted."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import (
    AliasChoices,
    Field,
    ModelWrapValidatorHandler,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    ValidationInfo,
    model_validator,
)

from storage.results import Caches
from tasks.domains import DOMAINS
from tasks.quantize.methods import METHODS
from tasks.runtimes import RUNTIMES
from tasks.workload.base import Kind, PlainText, Section, Slug
from tasks.workload.recipe import Recipe


class Benchmark(Section):
    """``[benchmark]``: what is timed. ``baseline`` names a candidate as ``recipe/runtime``.

    Calls with warm and with cold caches are timed always; ``caches`` says by which ones the gate decides: ``warm`` for
    a model that is called in a loop, ``cold`` for one that is called now and then, between other work.
    """

    baseline: str = Field(
        default=f"float/{RUNTIMES.default}", pattern=r"^[a-z0-9][a-z0-9.-]{0,62}/[a-z0-9][a-z0-9.-]{0,62}$"
    )
    threads: PositiveInt = 1
    batch_size: PositiveInt = 1
    sequence_length: PositiveInt = 25
    batch_sizes: tuple[PositiveInt, ...] = ()
    thread_counts: tuple[PositiveInt, ...] = ()
    caches: Caches = "warm"


class Gate(Section):
    """``[gate]``: the rules that a candidate must pass to be promoted; one that is left out does not apply.

    ``max_quality_drop`` is in the metric's own unit (``quality_drop = "absolute"``) or a share of the baseline's
    quality (``"relative"``); a drop is a change for the worse in the metric's stated direction. It and ``min_speedup``
    are held against the worse end of an interval. ``margin`` is how many times as fast (or as small, by the objective)
    as the current bundle a candidate must be to replace it. ``min_int8_time_share``, ``max_saturation`` (a share of the
    output's range) and ``require_batch_invariance`` are about what a candidate executes: see docs/proof.md.
    """

    objective: Literal["fastest", "smallest"] = "fastest"
    quality_drop: Literal["absolute", "relative"] = "absolute"
    max_quality_drop: float | None = Field(default=None, ge=0)
    min_size_ratio: PositiveFloat | None = None
    min_speedup: PositiveFloat | None = None
    max_peak_rss_bytes: PositiveInt | None = None
    min_coverage: float | None = Field(default=None, ge=0, le=1)
    min_int8_time_share: float | None = Field(default=None, ge=0, le=1)
    max_saturation: float | None = Field(default=None, ge=0, le=1)
    require_batch_invariance: bool = False
    margin: float = Field(default=1.0, ge=1)


class Workload(Section):
    """A model, its checkpoint, data set, metric, benchmark settings, recipes and gate.

    Validating a mapping gives the class of the domain that it names, whose sections have types of their own. ``name``
    is unique in a night; ``schema_version`` is the version of this file format.
    """

    schema_version: Literal[1]
    name: Slug
    description: PlainText
    domain: str = Field(validation_alias=AliasChoices("domain", "purpose"))
    licence: PlainText = ""
    data: SerializeAsAny[Kind]
    model: SerializeAsAny[Kind]
    checkpoint: SerializeAsAny[Kind]
    recipe: tuple[SerializeAsAny[Recipe], ...] = Field(min_length=1)
    evaluate: SerializeAsAny[Section] = Section()
    benchmark: Benchmark = Benchmark()
    gate: Gate = Gate()

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_domain(cls, value: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if cls is Workload and isinstance(value, dict) and (named := value.get("domain", value.get("purpose"))):
            # A domain's class is one of these.
            return DOMAINS[str(named)].workload.model_validate(value, context=info.context)  # type: ignore[return-value]
        return handler(value)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        names = [recipe.name for recipe in self.recipe]
        if len(set(names)) != len(names):
            raise ValueError(f"recipe names must differ: {names}")
        domain = DOMAINS[self.domain]
        for recipe in self.recipe:
            for need in METHODS[recipe.method].needs:
                if not isinstance(domain, need):
                    raise ValueError(
                        f'recipe "{recipe.name}": method "{recipe.method}" does not fit domain "{self.domain}", '
                        f"which {need.lack}"
                    )
        if self.benchmark.baseline not in self.candidates():
            raise ValueError(
                f'benchmark.baseline "{self.benchmark.baseline}" is no candidate: expected one of {self.candidates()}'
            )
        return self

    def candidates(self) -> list[str]:
        """Every ``recipe/runtime`` of this workload, in file order."""
        return [f"{recipe.name}/{runtime}" for recipe in self.recipe for runtime in recipe.runtimes]

    def recipe_named(self, name: str) -> Recipe:
        """The recipe of that name; `KeyError` where there is none."""
        return {recipe.name: recipe for recipe in self.recipe}[name]

    def baseline(self) -> tuple[str, str]:
        """Recipe name and runtime of the baseline."""
        recipe, _, runtime = self.benchmark.baseline.partition("/")
        return recipe, runtime
