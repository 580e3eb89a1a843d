"""``[[recipe]]``: how to quantize, and for which runtimes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, WithJsonSchema, field_validator, model_validator

from tasks.extensions import METHODS, RUNTIMES
from tasks.workload.base import Section, Slug

RuntimeName = Annotated[str, WithJsonSchema({"type": "string", "enum": list(RUNTIMES)})]
Engine = Literal["x86", "fbgemm", "onednn", "qnnpack"]


class Recipe(Section):
    """What recipes of every method have in common; each method adds its own keys.

    Validating a mapping gives the class of the method that it names.
    """

    name: Slug
    """What tables and reports call it; once in a file."""
    method: str
    """How to quantize; its own keys are listed with it."""
    runtimes: tuple[RuntimeName, ...] = Field(default=(RUNTIMES.default,), min_length=1)
    """Who executes the result; each makes a candidate."""
    engine: Engine = "x86"
    """torch's quantized engine; float recipes and other runtimes have no use for it."""
    exclude: tuple[str, ...] = ()
    """Modules that stay float, with everything in them, by their path in the model."""

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_method(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Recipe:
        if cls is Recipe and isinstance(value, dict) and "method" in value:
            return METHODS[str(value["method"])].recipe.model_validate(value)
        return handler(value)

    @field_validator("runtimes")
    @classmethod
    def _known_and_once(cls, runtimes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(runtimes)) < len(runtimes):
            raise ValueError("runtimes names one twice; each candidate is measured once")
        for name in runtimes:
            RUNTIMES[name]
        return runtimes

    @model_validator(mode="after")
    def _runtimes_can_carry_it_out(self) -> Self:
        for name in self.runtimes:
            if obstacle := RUNTIMES[name].obstacle(self):
                raise ValueError(f'recipe "{self.name}" does not fit runtime "{name}": {obstacle}')
        return self

    def sketch(self, samples: int = 1) -> Recipe:
        """A recipe that leaves the same modules float with at most so many calibration samples and without training."""
        return self

    def content(self) -> dict[str, object]:
        """What decides the result: a recipe's name and runtimes only say how it is used."""
        return self.model_dump(mode="json", exclude={"name", "runtimes"})
