"""The quantization methods, and the keys and specs of their recipes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.quantize.base import Axis, Method
from tasks.quantize.spec import EVERY, Calibration, Layer, Spec, Training
from tasks.workload.recipe import MemoryFormat, Observer, Recipe, WeightScales
from tasks.workload.registry import Need

_PLAIN = "tasks.quantize.coverage:PlainConverter"
_MEMORY_FORMAT = Axis("memory_format", ("contiguous", "channels-last"), frozenset({"Conv2d"}))
_EMBEDDING = frozenset({"Embedding"})
_ENGINE = Axis("engine", ())  # no fixed values, because the available engines depend on the processor
_WEIGHTS = Axis("weights", ("per-channel", "per-tensor"), same_speed=True)
_OBSERVER = Axis("activation_observer", ("histogram", "moving-average", "min-max"), same_speed=True)


class FloatRecipe(Recipe):
    """A recipe that leaves the model in float, for baselines and comparisons."""

    method: Literal["none"]
    memory_format: MemoryFormat = "contiguous"
    """Memory format of images and convolutions."""
    onednn: bool = True
    """Whether to use oneDNN's kernels. Single steps of recurrent layers can be faster without oneDNN. The setting
    affects the process that runs the model, and is not stored in model files.
    """


class Float(Method[FloatRecipe]):
    """A method that leaves every module in float."""

    recipe = FloatRecipe
    quantizes = False
    converts = _PLAIN
    axes = (_MEMORY_FORMAT, Axis("onednn", (True, False), frozenset({"LSTM", "GRU"})))

    def spec(self, recipe: FloatRecipe) -> Spec:
        """Return a spec with a small tolerance, because float results on two processors differ only slightly."""
        return Spec(recipe=recipe, memory_format=recipe.memory_format, onednn=recipe.onednn, tolerance=1e-4)


class CastRecipe(Recipe):
    """A recipe that converts the model to bfloat16."""

    method: Literal["cast"]
    memory_format: MemoryFormat = "contiguous"
    """Memory format of images and convolutions."""


class Cast(Method[CastRecipe]):
    """A method that casts every parameter; inputs and outputs stay float32."""

    recipe = CastRecipe
    quantizes = False
    converts = _PLAIN
    axes = (_MEMORY_FORMAT,)

    def spec(self, recipe: CastRecipe) -> Spec:
        """Return a spec for bfloat16, whose eight significant bits cause rounding errors of up to 0.4% per layer."""
        return Spec(recipe=recipe, arithmetic="bfloat16", memory_format=recipe.memory_format, tolerance=3e-2)


class DynamicRecipe(Recipe):
    """A recipe that quantizes weights in advance, and activations at run time (``quantize_dynamic``)."""

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    dtype: Literal["qint8", "float16"] = "qint8"
    """Type of the weights. `qint8` also quantizes activations to int8; with `float16`, activations stay in float32."""
    per_channel: bool = False
    """Whether each output channel of a weight has its own scale."""
    embedding_bits: Literal[4, 8] | None = None
    """Number of bits per embedding value. Without this key, embeddings stay in float."""


class Dynamic(Method[DynamicRecipe]):
    """A method that applies ``quantize_dynamic`` to modules of the named types, and can quantize embeddings."""

    recipe = DynamicRecipe
    converts = "tasks.quantize.dynamic_modules:DynamicConverter"
    axes = (
        Axis("embedding_bits", (None, 8, 4), _EMBEDDING),
        Axis("dtype", ("qint8", "float16")),
        _ENGINE,
        Axis("per_channel", (False, True), same_speed=True),
    )

    def spec(self, recipe: DynamicRecipe) -> Spec:
        """Return a spec in which all rows of a call share one int8 range per activation."""
        granularity: Literal["channel", "tensor"] = "channel" if recipe.per_channel else "tensor"
        if recipe.dtype == "float16":
            layer = Layer("float16", granularity, "float")
        else:
            layer = Layer("int8", granularity, "dynamic-per-tensor")
        layers: dict[str, Layer] = dict.fromkeys(map(str, recipe.modules), layer)
        if recipe.embedding_bits is not None:
            layers["Embedding"] = Layer("int4" if recipe.embedding_bits == 4 else "int8", "channel", layer.activations)
        # Rounding errors are far smaller in float16 than in int8.
        tolerance = 1e-2 if recipe.dtype == "float16" and recipe.embedding_bits is None else 5e-2
        return Spec(recipe=recipe, layers=layers, engine=recipe.engine, tolerance=tolerance)


class DynamicPerRowRecipe(Recipe):
    """A recipe that quantizes weights per output channel in advance, and activations per row at run time."""

    method: Literal["dynamic-per-row"]
    modules: tuple[Literal["LSTM", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    embedding_bits: Literal[8] | None = None
    """Number of bits per embedding value. Without this key, embeddings stay in float."""


class DynamicPerRow(Method[DynamicPerRowRecipe]):
    """A method that replaces modules of the named types with nightquant's int8 modules (docs/recipes.md)."""

    recipe = DynamicPerRowRecipe
    converts = "tasks.quantize.int8_modules:PerRowConverter"
    axes = (Axis("embedding_bits", (None, 8), _EMBEDDING),)

    def spec(self, recipe: DynamicPerRowRecipe) -> Spec:
        """Return a spec whose operators compute the same numbers on every processor."""
        types = (*recipe.modules, *(["Embedding"] if recipe.embedding_bits else []))
        layers = dict.fromkeys(types, Layer("int8", "channel", "dynamic-per-row"))
        return Spec(recipe=recipe, layers=layers, operators="own", tolerance=1e-2)


class GraphRecipe(Recipe):
    """A recipe that quantizes a model's complete graph."""

    weights: WeightScales = "per-channel"
    """Granularity of the weights' scales: one scale per output channel, or one scale per weight tensor."""

    def layers(self) -> dict[str, Layer]:
        """Return int8 settings for every module type that has an int8 kernel."""
        return {EVERY: Layer("int8", "channel" if self.weights == "per-channel" else "tensor", "static")}


class StaticRecipe(GraphRecipe):
    """A recipe that quantizes weights and activations in advance, with calibrated ranges."""

    method: Literal["static"]
    activation_observer: Observer = "histogram"
    """Method for deriving an activation's range from observed values."""
    calibration_batches: PositiveInt = 8
    """Number of calibration batches."""
    calibration_batch_size: PositiveInt = 32
    """Number of samples per calibration batch."""

    def sketch(self, samples: int = 1) -> StaticRecipe:
        """Return a copy of the recipe that calibrates on at most `samples` samples."""
        size = min(self.calibration_batch_size, samples)
        batches = min(self.calibration_batches, samples // size)
        return self.model_copy(update={"calibration_batches": batches, "calibration_batch_size": size})


class Static(Method[StaticRecipe]):
    """A method that calibrates ranges with observers."""

    recipe = StaticRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration",)
    converts = "tasks.quantize.graph.convert:StaticConverter"
    axes = (_ENGINE, _WEIGHTS, _OBSERVER)

    def spec(self, recipe: StaticRecipe) -> Spec:
        """Return a spec that calibrates static ranges."""
        ranges = Calibration(recipe.activation_observer, recipe.calibration_batches, recipe.calibration_batch_size)
        return Spec(recipe=recipe, layers=recipe.layers(), calibration=ranges, engine=recipe.engine)


class QatRecipe(GraphRecipe):
    """A recipe that fine-tunes the model with simulated quantization, and then quantizes the model statically."""

    method: Literal["qat"]
    epochs: PositiveInt = 2
    """Number of passes over the `train` split."""
    # `batch_size` must be at least 2, because batch normalization cannot train on a single image.
    batch_size: int = Field(default=32, ge=2)
    """Number of samples per training step."""
    learning_rate: PositiveFloat = 1e-4
    """Learning rate of the optimizer."""
    seed: int = 0
    """Seed for the order of the samples."""

    def sketch(self, samples: int = 1) -> StaticRecipe:
        """Return a static recipe that quantizes the same modules as this recipe."""
        common = self.model_dump(include=set(GraphRecipe.model_fields) - {"method"})
        return StaticRecipe(method="static", **common).sketch(samples)


class Qat(Method[QatRecipe]):
    """A method that quantizes weights and activations to int8 after quantization-aware training."""

    recipe = QatRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration", "fine-tuning")
    converts = "tasks.quantize.trained:QatConverter"
    axes = (_ENGINE, _WEIGHTS)

    def spec(self, recipe: QatRecipe) -> Spec:
        """Return a spec that fine-tunes weights and ranges."""
        training = Training(**{name: getattr(recipe, name) for name in Training.__dataclass_fields__})
        return Spec(recipe=recipe, layers=recipe.layers(), training=training, engine=recipe.engine)
