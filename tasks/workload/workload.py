"""A workload: a TOML file with a model, the ways to quantize the model, and the conditions for promotion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from storage.results import Caches, Scenario
from tasks.workload.base import Kind, Registry, Section, Slug
from tasks.workload.gate import Gate, Search
from tasks.workload.recipe import RUNTIMES, CandidateName, Need, Recipe

DOMAINS: Registry[Workload] = Registry(
    "domain",
    {
        "language-model": "tasks.domains.language_model:LanguageModelWorkload",
        "sequence": "tasks.domains.sequence:SequenceWorkload",
        "image-classification": "tasks.domains.image_classification:ImageWorkload",
        "text-encoder": "tasks.domains.text_encoder:EncoderWorkload",
        "custom": "tasks.domains.custom:CustomWorkload",
    },
)

FASTEST_FLOAT = "fastest-float"


class Capacity(Section):
    """Settings for the capacity measurement; without this section, a run does not measure capacity.

    A request is a call with `benchmark.batch_size` rows. Without `latency_bound_ms`, all processors are kept busy.
    """

    latency_bound_ms: PositiveFloat | None = None
    """Send requests at random times, and limit the 99th-percentile latency, including queueing, to this value."""
    threads: PositiveInt = 1
    """Number of threads per process; there are as many processes as the processors allow."""
    budget_s: PositiveFloat = 90.0
    """Time budget for the measurement, in seconds, shared by all candidates of the workload."""

    @property
    def scenario(self) -> Scenario:
        """The kind of load, with MLPerf's names."""
        return "offline" if self.latency_bound_ms is None else "server"


class Benchmark(Section):
    """Settings for the timed calls. Every run times calls with warm caches and calls with cold caches."""

    baseline: str = Field(
        default=f"float/{RUNTIMES.default}",
        pattern=rf"^({FASTEST_FLOAT}|[a-z0-9][a-z0-9.-]{{0,62}}/[a-z0-9][a-z0-9.-]{{0,62}})$",
    )
    """Candidate that all other candidates are compared with, in the form `recipe/runtime`.

    With `fastest-float`, the first night chooses the fastest float candidate that can be deployed. The choice stays
    until another float candidate is decidedly faster.
    """
    twins: bool = True
    """Whether nights also build, evaluate and time the float candidate of each quantized candidate's runtime."""
    threads: PositiveInt = 1
    """Number of threads for each call."""
    batch_size: PositiveInt = 1
    """Number of rows per timed call."""
    sequence_length: PositiveInt = 25
    """Number of steps per timed call, for models whose inputs have steps."""
    caches: Caches = "warm"
    """Timed calls that the gate uses.

    Choose `warm` if your application calls the model in a loop, or `cold` if other work runs between calls.
    """
    capacity: Capacity | None = None
    """Settings for the capacity measurement."""


_LACKS: Mapping[Need, str] = {
    "calibration": "does not provide calibration inputs",
    "fine-tuning": "does not fine-tune models",
}


class Workload(Section):
    """A model, its checkpoint, data set, metric, benchmark settings, recipes and gate.

    Validating a mapping returns an instance of the domain's subclass, which defines the types of the sections.
    """

    implementation: ClassVar[str] = ""  # ``"module:class"`` of the domain (`tasks.domains.base.Domain`)
    provides: ClassVar[tuple[Need, ...]] = ()  # method requirements that the domain meets
    extra: ClassVar[str] = ""  # the extra that installs the domain's libraries, or ``""`` if no extra is needed
    distributions: ClassVar[tuple[str, ...]] = ()  # libraries that the domain needs

    schema_version: Literal[1]
    """Version of the workload file format."""
    name: Slug
    """Name of the workload; workloads of the same night must have different names."""
    description: str
    """Short description for tables and reports."""
    domain: str
    """Domain of the model; determines the available sections and kinds."""
    licence: str = ""
    """Licence of the model and the data, for the model card."""
    data: SerializeAsAny[Kind]
    """Data set for calibration and evaluation."""
    model: SerializeAsAny[Kind]
    """Architecture of the float model."""
    checkpoint: SerializeAsAny[Kind]
    """Weights of the float model."""
    recipe: tuple[SerializeAsAny[Recipe], ...] = Field(min_length=1)
    """Ways to quantize the model, each with one or more runtimes."""
    evaluate: SerializeAsAny[Section] = Section()
    """Settings for the quality evaluation."""
    benchmark: Benchmark = Benchmark()
    """Settings for the timed calls."""
    gate: Gate = Gate()
    """Rules for promotion."""
    search: Search | None = None
    """Settings for the recipe search. Without this section, a nightly run measures only the recipes in this file."""

    @model_validator(mode="wrap")
    @classmethod
    def _parse_as_domain(cls, value: object, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if cls is Workload and isinstance(value, dict) and (domain := value.get("domain")):
            # Every domain has its own subclass of `Workload`.
            return DOMAINS[str(domain)].model_validate(value, context=info.context)  # type: ignore[return-value]
        return handler(value)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        names = [recipe.name for recipe in self.recipe]
        if len(set(names)) != len(names):
            raise ValueError(f"the recipe names {names} are not unique; give each recipe a unique name")
        for recipe in self.recipe:
            for need in recipe.needs:
                if lack := self.missing(need):
                    raise ValueError(
                        f'method "{recipe.method}" of recipe "{recipe.name}" is not compatible '
                        f'with domain "{self.domain}", which {lack}; choose another method'
                    )
        if self.search:
            self.search.goal(self.gate)
        if self.chooses_baseline and not self.floats():
            deployable = ", ".join(name for name in RUNTIMES if RUNTIMES[name].hands_over)
            raise ValueError(
                f'benchmark.baseline = "{FASTEST_FLOAT}" requires a float candidate that can be deployed; add a recipe '
                f'with method = "none" and one of the runtimes {deployable}'
            )
        if self.benchmark.baseline not in (FASTEST_FLOAT, *map(str, self.candidates())):
            raise ValueError(
                f'benchmark.baseline "{self.benchmark.baseline}" is not a candidate of this workload; '
                f"choose one of {', '.join(map(str, self.candidates()))}"
            )
        return self

    @classmethod
    def missing(cls, need: Need) -> str:
        """Return the reason that the domain does not meet a method's requirement, or ``""``."""
        return "" if need in cls.provides else _LACKS[need]

    def misfit(self, needs: Iterable[Need]) -> str:
        """Return the reason that a method with these needs does not suit this workload, or ``""``."""
        lacks = [f'domain "{self.domain}" {lack}' for need in needs if (lack := self.missing(need))]
        if not lacks and "fine-tuning" in needs:
            return self.cannot_tune()
        return "".join(lacks[:1])

    def cannot_tune(self) -> str:
        """Return the reason that this workload's settings rule out fine-tuning, or ``""``."""
        return ""

    @classmethod
    def parse_model(cls, document: Mapping[str, object], folder: str) -> Kind:
        """Parse a ``[model]`` section from JSON; `folder` is the folder of the section's workload file."""
        section: Kind = TypeAdapter(cls.model_fields["model"].rebuild_annotation()).validate_python(
            document, context={"folder": folder}
        )
        return section

    @property
    def brings_weights(self) -> bool:
        """Whether the weights were made elsewhere, so that the data's class numbers may differ from the model's."""
        return self.checkpoint.kind not in ("train", "seeded")

    def candidates(self) -> list[CandidateName]:
        """Return the names of this workload's candidates, in file order."""
        return [CandidateName(recipe.name, runtime) for recipe in self.recipe for runtime in recipe.runtimes]

    def recipe_named(self, name: str) -> Recipe:
        """Return the recipe with this name; raise `KeyError` if the name is unknown."""
        return {recipe.name: recipe for recipe in self.recipe}[name]

    @property
    def chooses_baseline(self) -> bool:
        """Whether the baseline is the fastest float candidate, and not known yet."""
        return self.benchmark.baseline == FASTEST_FLOAT

    @property
    def baseline_name(self) -> CandidateName:
        """Name of the baseline; as long as the fastest float candidate is unknown, the first one in the file."""
        return self.floats()[0] if self.chooses_baseline else CandidateName.parse(self.benchmark.baseline)

    def with_baseline(self, name: CandidateName | str) -> Self:
        """Return a copy whose baseline is the candidate `name`."""
        return self.model_copy(update={"benchmark": self.benchmark.model_copy(update={"baseline": str(name)})})

    def floats(self) -> list[CandidateName]:
        """Return the float candidates in file order, without those whose runtime is never deployed."""
        floats = {recipe.name for recipe in self.recipe if recipe.method == "none"}
        return [name for name in self.candidates() if name.recipe in floats and RUNTIMES[name.runtime].hands_over]

    def twin(self, runtime: str) -> CandidateName | None:
        """Return the float candidate of a runtime, the first in file order, or None if there is none."""
        found = (recipe.name for recipe in self.recipe if recipe.method == "none" and runtime in recipe.runtimes)
        return next((CandidateName(name, runtime) for name in found), None)

    def with_twins(self) -> Self:
        """Return a copy with the missing float candidates of the quantized candidates' runtimes."""
        quantized = [name for recipe in self.recipe if recipe.method != "none" for name in recipe.runtimes]
        missing = tuple(name for name in dict.fromkeys(quantized) if not self.twin(name))
        if not missing or not self.benchmark.twins:
            return self
        names = [recipe.name for recipe in self.recipe]
        added = Recipe.model_validate(
            {"name": "float" if "float" not in names else "float-twin", "method": "none", "runtimes": missing}
        )
        plain = next((each for each in self.recipe if each.content() == added.content()), None)
        if plain is None:
            return self.model_copy(update={"recipe": (*self.recipe, added)})
        extended = plain.model_copy(update={"runtimes": (*plain.runtimes, *missing)})
        return self.model_copy(update={"recipe": tuple(extended if each is plain else each for each in self.recipe)})
