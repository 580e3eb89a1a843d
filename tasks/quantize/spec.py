"""What a recipe asks for, in terms that belong to no method and no runtime.

A method turns its recipe into a `Spec`. A runtime declares with `Limit` which values of a spec's properties it carries
out, and why it does not carry out others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

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

    ``tolerance`` is how far an output may be off on another processor, as a share of its range: in int8 a last digit
    can move an activation to the next of its 256 (with VNNI, or 128 without) steps, and such steps add up.
    """

    recipe: Recipe  # what the spec was made of
    layers: Mapping[str, Layer] = field(default_factory=dict)  # by the name of a type; other types stay float
    calibration: Calibration | None = None  # how static ranges are found in data; None if training finds them
    training: Training | None = None  # how weights and static ranges are fine-tuned
    arithmetic: Literal["float32", "bfloat16"] = "float32"  # of the modules that are not quantized
    engine: Engine | None = None  # whose kernels compute the converted module; None if it is an ordinary module
    operators: Literal["torch", "own"] = "torch"  # that the converted module calls; own ones are in a library beside it
    graph: Literal["auto", "eager", "fx"] = "auto"  # how torch is to convert the model's graph
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    onednn: bool = True
    tolerance: float = 5e-2

    def content(self) -> dict[str, object]:
        """Return everything that decides what is made, for a digest."""
        return {**asdict(self), "recipe": self.recipe.content()}

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
        """Whether the range of an activation is taken from all rows of a call together."""
        return "dynamic-per-tensor" in self.activations

    @property
    def why_float(self) -> str:
        """Why every module stays float, "" if some are quantized."""
        if self.layers:
            return ""
        return "a float recipe" if self.arithmetic == "float32" else "a cast is no quantization"


class Limit(NamedTuple):
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
