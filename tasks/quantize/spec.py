"""The spec of a recipe: a description that is independent of methods and runtimes.

A method turns its recipe into a `Spec`. A runtime's `Limit` contains the supported values of a spec's property and the
reason for rejecting other values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self

from storage.digest import digest_of
from tasks.workload.recipe import Engine, MemoryFormat, Observer, Recipe

_REPEATED = 50  # maximum length of a recipe's name before the number of float modules is appended
EVERY = "*"  # type name that stands for every type with a kernel

Weights = Literal["int8", "int4", "float16", "bfloat16"]
Granularity = Literal["tensor", "channel", "group"]  # a group is 32 weights of a channel
Activations = Literal["float", "dynamic-per-tensor", "dynamic-per-row", "static"]
Property = Literal[
    "form", "weights", "granularities", "activations", "arithmetic", "engine", "memory_format", "onednn", "operators"
]  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Settings for quantizing modules of a type: the weights, the granularity of scales, and the activations."""

    weights: Weights
    granularity: Granularity
    activations: Activations


@dataclass(frozen=True)
class Calibration:
    """Settings for finding static ranges: an observer processes `batches` batches of `batch_size` samples."""

    observer: Observer
    batches: int
    batch_size: int


@dataclass(frozen=True)
class Training:
    """Settings for fine-tuning a model; ``seed`` determines the order of samples."""

    epochs: int
    batch_size: int
    learning_rate: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A description of how to quantize a float model.

    ``tolerance`` is the allowed difference between two processors' outputs, as a fraction of the outputs' range:
    rounding can move an activation to the next of its 256 steps (128 without VNNI), and the differences add up.
    """

    name: str  # name of the recipe, for messages
    method: str
    exclude: tuple[str, ...] = ()  # paths of modules that stay in float, together with all their submodules
    layers: Mapping[str, Layer] = field(default_factory=dict)  # settings by type name; other types stay in float
    calibration: Calibration | None = None  # settings for calibration; None if training finds the static ranges
    training: Training | None = None  # settings for fine-tuning weights and static ranges
    arithmetic: Literal["float32", "bfloat16"] = "float32"  # type in which float modules compute
    engine: Engine | None = None  # engine whose kernels run the converted module; None for an ordinary module
    operators: Literal["torch", "own"] = "torch"  # provider of the operators that the module calls: torch or nightquant
    memory_format: MemoryFormat = "contiguous"
    onednn: bool = True
    tolerance: float = 5e-2

    def content(self) -> dict[str, object]:
        """Return all settings that determine the quantized model, as input for a digest."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    @classmethod
    def of(cls, recipe: Recipe, **settings: Any) -> Self:
        """Return the spec of a recipe with these settings, and with the recipe's name, method and exclusions."""
        return cls(name=recipe.name, method=recipe.method, exclude=recipe.exclude, **settings)

    @property
    def form(self) -> Literal["ordinary", "graph", "modules"]:
        """Part of a model that uses torch's quantized kernels: the graph, some modules, or nothing (``"ordinary"``)."""
        if self.engine is None:
            return "ordinary"
        return "graph" if EVERY in self.layers else "modules"

    @property
    def weights(self) -> frozenset[Weights]:
        """Types of quantized weights."""
        return frozenset(layer.weights for layer in self.layers.values())

    @property
    def granularities(self) -> frozenset[Granularity]:
        """Granularities of the quantized weights' scales."""
        return frozenset(layer.granularity for layer in self.layers.values())

    @property
    def activations(self) -> frozenset[Activations]:
        """Ways in which quantized modules quantize activations."""
        return frozenset(layer.activations for layer in self.layers.values())

    @property
    def couples_rows(self) -> bool:
        """Whether a row's outputs depend on the other rows of a call, because each activation has one range for all."""
        return "dynamic-per-tensor" in self.activations

    @property
    def why_float(self) -> str:
        """Reason for keeping every module in float, or "" if the spec quantizes modules."""
        if self.layers:
            return ""
        return "a float recipe" if self.arithmetic == "float32" else "a cast does not quantize"


class Limit(NamedTuple):
    """The values that a runtime supports for a property of a spec; ``reason`` is a format string over the spec."""

    of: Property
    values: frozenset[object]
    reason: str


def limit(of: Property, *values: object, reason: str) -> Limit:
    """Declare which values of a property a runtime supports."""
    return Limit(of, frozenset(values), reason)


class MethodRecipe(Recipe):
    """A recipe of one method: the method's keys, and their translation into a spec.

    Its module does not import torch, because nightquant imports it to validate a workload file.
    """

    @abstractmethod
    def spec(self) -> Spec:
        """Return the recipe's spec."""


def spec_of(recipe: Recipe) -> Spec:
    """Return a recipe's spec."""
    assert isinstance(recipe, MethodRecipe)
    return recipe.spec()


def excluding(recipe: Recipe, layers: Mapping[str, str], count: int) -> Recipe:
    """Return a recipe that keeps the first `count` layers in float; `layers` maps paths to types."""
    changes: dict[str, object] = {"exclude": (*recipe.exclude, *list(layers)[:count])}
    if "Embedding" in spec_of(recipe).layers and "Embedding" not in list(layers.values())[count:]:
        changes["embedding_bits"] = None  # ``embedding_bits`` is not allowed if no embedding is quantized
    return recipe.model_copy(update=changes)


def renamed(recipe: Recipe, name: str) -> Recipe:
    """Rename a recipe; if modules stay in float, append the number of these modules and part of the recipe's digest."""
    if recipe.exclude:
        name = f"{name[:_REPEATED]}-float{len(recipe.exclude)}-{digest_of(recipe.content())[:4]}"
    return recipe.model_copy(update={"name": name})


def obstacle(spec: Spec, limits: Iterable[Limit]) -> str:
    """Return the reason that a runtime with the given limits does not support a spec, or "" if it supports the spec."""
    for bound in limits:
        required = getattr(spec, bound.of)
        if not (required if isinstance(required, frozenset) else {required}) <= bound.values:
            return bound.reason.format_map(vars(spec))
    return ""
