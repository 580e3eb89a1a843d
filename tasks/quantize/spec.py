"""What a recipe asks for, in terms that belong to no method and no runtime.

A method turns its recipe into a `Spec`. A runtime declares with `Limit` which values of a spec's properties it carries
out, and why it does not carry out others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tasks.extensions import METHODS
from tasks.workload.recipe import Engine, Recipe

EVERY = "*"  # in the place of a type's name: every type that there is a kernel for

Weights = Literal["int8", "int4", "float16", "bfloat16"]
Granularity = Literal["tensor", "channel"]
Activations = Literal["float", "dynamic-per-tensor", "dynamic-per-row", "static"]
Observer = Literal["min-max", "moving-average", "histogram"]
Property = Literal[
    "form",
    "weights",
    "granularities",
    "activations",
    "arithmetic",
    "engine",
    "graphs",
    "memory_format",
    "onednn",
    "operators",
]


@dataclass(frozen=True)
class Layer:
    """How modules of a type are quantized: their weights, the unit that has a scale, and their activations."""

    weights: Weights
    granularity: Granularity
    activations: Activations


@dataclass(frozen=True)
class Calibration:
    """How static ranges are found: by an observer that is shown so many batches of so many samples."""

    observer: Observer
    batches: int
    batch_size: int


@dataclass(frozen=True)
class Training:
    """How a model is fine-tuned: in epochs, steps of so many samples, and with a seed that orders them.

    After the named numbers of epochs, ranges and batch normalization's statistics stay as they are.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    freeze_observers_after: int
    freeze_batch_norm_after: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What becomes of a float model.

    Attributes
    ----------
    recipe
        What the spec was made of: it has a name, names modules to exclude, and is kept with what is made by it.
    layers
        How modules are quantized, by the name of their type; types that are not named stay float.
    calibration
        How static ranges are found in calibration data; None if there are none, or training finds them.
    training
        How the weights, and static ranges, are fine-tuned; None if the weights are the checkpoint's.
    arithmetic
        Type that the modules that are not quantized compute in.
    engine
        torch's quantized engine whose kernels compute the converted module; None if it is an ordinary module.
    operators
        Whether the converted module calls torch's operators only, or also ones from a library beside it.
    graph
        How torch is to convert the model's graph.
    tolerance
        How far an output may be off on another processor, as a share of its range. In int8 a last digit can move an
        activation to the next of its 256 (with VNNI, or 128 without) steps, and such steps add up from layer to layer.
    """

    recipe: Recipe
    layers: Mapping[str, Layer] = field(default_factory=dict)
    calibration: Calibration | None = None
    training: Training | None = None
    arithmetic: Literal["float32", "bfloat16"] = "float32"
    engine: Engine | None = None
    operators: Literal["torch", "own"] = "torch"
    graph: Literal["auto", "eager", "fx"] = "auto"
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    onednn: bool = True
    tolerance: float = 5e-2

    @property
    def form(self) -> Literal["ordinary", "graph", "modules"]:
        """What torch's kernels compute of the converted module: nothing special, its graph, or modules in it."""
        if self.engine is None:
            return "ordinary"
        return "graph" if EVERY in self.layers else "modules"

    @property
    def weights(self) -> frozenset[Weights]:
        """Types of quantized weights."""
        return frozenset(layer.weights for layer in self.layers.values())

    @property
    def granularities(self) -> frozenset[Granularity]:
        """Units of quantized weights that have a scale."""
        return frozenset(layer.granularity for layer in self.layers.values())

    @property
    def activations(self) -> frozenset[Activations]:
        """How activations of quantized modules are treated."""
        return frozenset(layer.activations for layer in self.layers.values())

    @property
    def graphs(self) -> frozenset[str]:
        """Graph modes that a runtime must take which calibrates by itself; training has taken its own by then."""
        return frozenset({self.graph} if self.calibration else ())

    @property
    def couples_rows(self) -> bool:
        """Whether what a model computes for a row depends on the other rows of the call.

        It does if the range of an activation is taken from all rows of a call together.
        """
        return "dynamic-per-tensor" in self.activations

    @property
    def why_float(self) -> str:
        """Why every module stays float, "" if some are quantized."""
        if self.layers:
            return ""
        return "a float recipe" if self.arithmetic == "float32" else "a cast is no quantization"


@dataclass(frozen=True)
class Limit:
    """The values of a spec's property that a runtime carries out, and why it does not carry out any others.

    ``reason`` is a format string over the spec.
    """

    of: Property
    values: frozenset[object]
    reason: str


def limit(of: Property, *values: object, reason: str) -> Limit:
    """Declare the values of a property that a runtime carries out."""
    return Limit(of, frozenset(values), reason)


def spec_of(recipe: Recipe) -> Spec:
    """Let a recipe's method say what the recipe asks for."""
    return METHODS[recipe.method].spec(recipe)


def obstacle(spec: Spec, limits: Iterable[Limit]) -> str:
    """Return why a runtime with these limits cannot carry a spec out, "" if it can."""
    for bound in limits:
        asked = getattr(spec, bound.of)
        if not (asked if isinstance(asked, frozenset) else {asked}) <= bound.values:
            return bound.reason.format_map(vars(spec))
    return ""
