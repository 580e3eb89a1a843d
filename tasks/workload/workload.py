"""A workload: one TOML file that says what to quantize, how, and what may be promoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    Field,
    ModelWrapValidatorHandler,
    PositiveInt,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from storage.results import Caches
from tasks.extensions import DOMAINS, METHODS, RUNTIMES, Need
from tasks.workload.base import Kind, PlainText, Section, Slug
from tasks.workload.gate import Gate
from tasks.workload.recipe import Recipe


class Benchmark(Section):
    """``[benchmark]``: what is timed.

    Calls with warm and with cold caches are timed always.
    """

    baseline: str = Field(
        default=f"float/{RUNTIMES.default}", pattern=r"^[a-z0-9][a-z0-9.-]{0,62}/[a-z0-9][a-z0-9.-]{0,62}$"
    )
    """The candidate that all others are compared with, as `recipe/runtime`."""
    threads: PositiveInt = 1
    """Threads that a call may use."""
    batch_size: PositiveInt = 1
    """Rows in the timed call."""
    sequence_length: PositiveInt = 25
    """Steps in the timed call, of models that have them."""
    batch_sizes: tuple[PositiveInt, ...] = ()
    """Further numbers of rows that are timed; they decide nothing."""
    thread_counts: tuple[PositiveInt, ...] = ()
    """Further numbers of threads that are timed; they decide nothing."""
    caches: Caches = "warm"
    """By which calls the gate decides: `warm` for a model that is called in a loop, `cold` for one that is called now
    and then, between other work.
    """


class SequenceBenchmark(Benchmark):
    """``[benchmark]`` of a domain whose inputs have steps: what is timed."""

    sequence_lengths: tuple[PositiveInt, ...] = ()
    """Further numbers of steps that are timed; they decide nothing."""


_LACKS: Mapping[Need, str] = {"calibration": "gives no calibration inputs", "fine-tuning": "does not fine-tune models"}


class Workload(Section):
    """A model, its checkpoint, data set, metric, benchmark settings, recipes and gate.

    Validating a mapping gives the class of the domain that it names, whose sections have types of their own.
    """

    implementation: ClassVar[str] = ""  # "module:class" of the domain, a `tasks.domains.base.Domain`
    gives: ClassVar[tuple[Need, ...]] = ()  # what methods may ask of the domain, besides a float model
    extra: ClassVar[str] = ""  # of this project, which installs what the domain needs; "" where it is always there
    distributions: ClassVar[tuple[str, ...]] = ()  # what must be installed besides

    schema_version: Literal[1]
    """Version of this file format."""
    name: Slug
    """Unique in a night."""
    description: PlainText
    """What it is, for people."""
    domain: str = Field(validation_alias=AliasChoices("domain", "purpose"))
    """The kind of work; it decides which sections there are."""
    licence: PlainText = ""
    """Who may use model and data, for the model card."""
    data: SerializeAsAny[Kind]
    """What the model is calibrated and evaluated on."""
    model: SerializeAsAny[Kind]
    """The float model."""
    checkpoint: SerializeAsAny[Kind]
    """The float model's weights."""
    recipe: tuple[SerializeAsAny[Recipe], ...] = Field(min_length=1)
    """How to quantize, and for which runtimes."""
    evaluate: SerializeAsAny[Section] = Section()
    """How quality is measured."""
    benchmark: Benchmark = Benchmark()
    """What is timed."""
    gate: Gate = Gate()
    """What may be promoted."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_domain(cls, value: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if cls is Workload and isinstance(value, dict) and (named := value.get("domain", value.get("purpose"))):
            # A domain's class is one of these.
            return DOMAINS.workload(str(named)).model_validate(value, context=info.context)  # type: ignore[return-value]
        return handler(value)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        names = [recipe.name for recipe in self.recipe]
        if len(set(names)) != len(names):
            raise ValueError(f"recipe names must differ: {names}")
        for recipe in self.recipe:
            for need in METHODS[recipe.method].needs:
                if lack := self.lacks(need):
                    raise ValueError(
                        f'recipe "{recipe.name}": method "{recipe.method}" does not fit domain "{self.domain}", '
                        f"which {lack}"
                    )
        if self.benchmark.baseline not in self.candidates():
            raise ValueError(
                f'benchmark.baseline "{self.benchmark.baseline}" is no candidate: expected one of {self.candidates()}'
            )
        return self

    @classmethod
    def lacks(cls, need: Need) -> str:
        """Say why the domain does not give a method what it needs, "" if it does."""
        return "" if need in cls.gives else _LACKS[need]

    def cannot_tune(self) -> str:
        """Say why this workload's models cannot be fine-tuned, though the domain's can; "" if they can."""
        return ""

    @classmethod
    def parse_model(cls, document: Mapping[str, object], folder: str) -> Kind:
        """Read the section that describes a model from JSON; `folder` is its workload file's."""
        section: Kind = TypeAdapter(cls.model_fields["model"].rebuild_annotation()).validate_python(
            document, context={"folder": folder}
        )
        return section

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
