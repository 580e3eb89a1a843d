"""A workload: one TOML file that says what to quantize, how, and what may be promoted."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from tasks.workload.base import Section, Slug
from tasks.workload.data import Data
from tasks.workload.gate import Gate
from tasks.workload.model import Checkpoint, Model
from tasks.workload.recipe import Recipe, Runtime

Purpose = Literal["language-model", "sequence", "image-classification"]
Verdict = Literal["valid", "inconclusive", "not-measured"]

_ALLOWED: dict[str, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {
    # purpose: kinds of data, of model, methods of recipes
    "language-model": (frozenset({"pydoc-topics", "text"}), frozenset({"word-lm"}), frozenset({"none", "dynamic"})),
    "sequence": (frozenset({"random-sequence"}), frozenset({"lstm"}), frozenset({"none", "dynamic"})),
    "image-classification": (
        frozenset({"rendered-characters", "image-folder", "torchvision"}),
        frozenset({"torchvision", "factory"}),
        frozenset({"none", "static", "qat", "dynamic"}),
    ),
}


class Evaluate(Section):
    """``[evaluate]``: how quality is computed."""

    mode: Literal["segments", "exact"] = "segments"
    segments: PositiveInt = 16
    warm_up: PositiveInt = 32
    sequence_length: PositiveInt = 25
    batch_size: PositiveInt = 32


class Benchmark(Section):
    """``[benchmark]``: what is timed. ``baseline`` names a candidate as ``recipe/runtime``."""

    baseline: str = Field(default="float/eager", pattern=r"^[a-z0-9][a-z0-9.-]*/[a-z]+$")
    threads: PositiveInt = 1
    batch_size: PositiveInt = 1
    sequence_length: PositiveInt = 25
    batch_sizes: tuple[PositiveInt, ...] = ()
    thread_counts: tuple[PositiveInt, ...] = ()


class Workload(Section):
    """A model, its checkpoint, data set, metric, benchmark settings, recipes and gate.

    ``name`` is unique in a night; ``schema_version`` is the version of this file format.
    """

    schema_version: Literal[1]
    name: Slug
    description: str
    purpose: Purpose
    licence: str = ""
    data: Data
    model: Model
    checkpoint: Checkpoint
    recipe: tuple[Recipe, ...] = Field(min_length=1)
    evaluate: Evaluate = Evaluate()
    benchmark: Benchmark = Benchmark()
    gate: Gate = Gate()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        data, models, methods = _ALLOWED[self.purpose]
        for key, kind, allowed in (("data", self.data.kind, data), ("model", self.model.kind, models)):
            if kind not in allowed:
                raise ValueError(
                    f'{key}.kind "{kind}" does not fit purpose "{self.purpose}": expected one of {sorted(allowed)}'
                )
        names = [recipe.name for recipe in self.recipe]
        if len(set(names)) != len(names):
            raise ValueError(f"recipe names must differ: {names}")
        for recipe in self.recipe:
            if recipe.method not in methods:
                raise ValueError(
                    f'recipe "{recipe.name}": method "{recipe.method}" does not fit purpose "{self.purpose}": '
                    f"expected one of {sorted(methods)}"
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
        for recipe in self.recipe:
            if recipe.name == name:
                return recipe
        raise KeyError(name)

    def baseline(self) -> tuple[str, Runtime]:
        """Recipe name and runtime of the baseline."""
        recipe, _, runtime = self.benchmark.baseline.partition("/")
        return recipe, "torchscript" if runtime == "torchscript" else "eager"
