"""The spec of a recipe, in terms that are independent of methods and runtimes.

A method turns its recipe into a `Spec`. A runtime declares with `Limit` which values of a spec's properties it
supports, and why it does not support others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

from tasks.extensions import METHODS
from tasks.workload.recipe import Engine, Recipe

EVERY = "*"  # used instead of a type's name: every type that has a kernel

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
    """How modules of a type are quantized: their weights, the granularity of scales, and their activations."""

    weights: Weights
    granularity: Granularity
    activations: Activations


@dataclass(frozen=True)
class Calibration:
    """How static ranges are found: an observer sees `batches` batches of `batch_size` samples."""

    observer: Observer
    batches: int
    batch_size: int


@dataclass(frozen=True)
class Training:
    """How a model is fine-tuned; ``seed`` determines the order of samples.

    The ranges and the statistics of batch normalization are frozen after the given numbers of epochs.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    freeze_observers_after: int
    freeze_batch_norm_after: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Spec:
    """How to quantize a float model.

    ``tolerance`` limits an output's difference on another processor, as a share of its range. In int8, rounding can
    move an activation to the next of its 256 steps (128 without VNNI), and such differences add up.
    """

    recipe: Recipe  # the recipe of this spec
    layers: Mapping[str, Layer] = field(default_factory=dict)  # by the name of a type; other types stay float
    calibration: Calibration | None = None  # how data give static ranges; None if training gives them
    training: Training | None = None  # how weights and static ranges are fine-tuned
    arithmetic: Literal["float32", "bfloat16"] = "float32"  # type in which float modules compute
    engine: Engine | None = None  # engine whose kernels run the converted module; None for an ordinary module
    operators: Literal["torch", "own"] = "torch"  # operators that the converted module calls; own ones need a library
    graph: Literal["auto", "eager", "fx"] = "auto"  # mode in which torch converts the model's graph
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    onednn: bool = True
    tolerance: float = 5e-2

    def content(self) -> dict[str, object]:
        """Return everything that determines the result, for a digest."""
        return {**asdict(self), "recipe": self.recipe.content()}

    @property
    def form(self) -> Literal["ordinary", "graph", "modules"]:
        """The part that torch's quantized kernels compute: nothing ("ordinary"), the graph, or some modules."""
        if self.engine is None:
            return "ordinary"
        return "graph" if EVERY in self.layers else "modules"

    @property
    def weights(self) -> frozenset[Weights]:
        """Types of quantized weights."""
        return frozenset(layer.weights for layer in self.layers.values())

    @property
    def granularities(self) -> frozenset[Granularity]:
        """Granularities of the scales of quantized weights."""
        return frozenset(layer.granularity for layer in self.layers.values())

    @property
    def activations(self) -> frozenset[Activations]:
        """Ways in which activations of quantized modules are treated."""
        return frozenset(layer.activations for layer in self.layers.values())

    @property
    def graphs(self) -> frozenset[str]:
        """Graph modes that a runtime must support if it calibrates; after training, the mode is already chosen."""
        return frozenset({self.graph} if self.calibration else ())

    @property
    def couples_rows(self) -> bool:
        """Whether all rows of a call share an activation's range."""
        return "dynamic-per-tensor" in self.activations

    @property
    def why_float(self) -> str:
        """Why every module stays float, "" if some are quantized."""
        if self.layers:
            return ""
        return "a float recipe" if self.arithmetic == "float32" else "a cast does not quantize"


class Limit(NamedTuple):
    """The values of a spec's property that a runtime supports, and why it does not support others.

    ``reason`` is a format string over the spec.
    """

    of: Property
    values: frozenset[object]
    reason: str


def limit(of: Property, *values: object, reason: str) -> Limit:
    """Declare the values of a property that a runtime supports."""
    return Limit(of, frozenset(values), reason)


def spec_of(recipe: Recipe) -> Spec:
    """Return the spec that a recipe's method makes."""
    return METHODS[recipe.method].spec(recipe)


def obstacle(spec: Spec, limits: Iterable[Limit]) -> str:
    """Return why a runtime with these limits does not support a spec, "" if it does."""
    for bound in limits:
        required = getattr(spec, bound.of)
        if not (required if isinstance(required, frozenset) else {required}) <= bound.values:
            return bound.reason.format_map(vars(spec))
    return ""
