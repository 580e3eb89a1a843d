"""The quantization methods: the keys of their recipes, and the specs of the recipes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveFloat, PositiveInt

from tasks.extensions import Need
from tasks.quantize.base import Method
from tasks.quantize.spec import EVERY, Calibration, Layer, Spec, Training
from tasks.workload.recipe import Recipe

_PLAIN = "tasks.quantize.plain:PlainConverter"


class FloatRecipe(Recipe):
    """The unchanged float model, for baselines and comparisons."""

    method: Literal["none"]
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    """Memory format of images and convolutions."""
    onednn: bool = True
    """Whether to use oneDNN's kernels. Single steps of recurrent layers are faster without them. Files do not contain
    this setting; it belongs to the calling process.
    """


class Float(Method[FloatRecipe]):
    """Leaves every module float."""

    recipe = FloatRecipe
    quantizes = False
    converts = _PLAIN

    def spec(self, recipe: FloatRecipe) -> Spec:
        """Quantize nothing; on another processor, float kernels differ only in the last digits."""
        return Spec(recipe=recipe, memory_format=recipe.memory_format, onednn=recipe.onednn, tolerance=1e-4)


class CastRecipe(Recipe):
    """The model in a shorter floating-point type."""

    method: Literal["cast"]
    dtype: Literal["bfloat16"] = "bfloat16"
    """Type of weights and arithmetic."""
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    """Memory format of images and convolutions."""


class Cast(Method[CastRecipe]):
    """Casts every parameter; inputs and outputs stay float32."""

    recipe = CastRecipe
    quantizes = False
    converts = _PLAIN

    def spec(self, recipe: CastRecipe) -> Spec:
        """Compute in bfloat16, which has eight significant bits, so that each layer rounds by up to 0.4%."""
        return Spec(recipe=recipe, arithmetic=recipe.dtype, memory_format=recipe.memory_format, tolerance=3e-2)


class DynamicRecipe(Recipe):
    """Quantize weights in advance, and activations at run time (``quantize_dynamic``)."""

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    dtype: Literal["qint8", "float16"] = "qint8"
    """int8 weights and activations, or float16 weights."""
    per_channel: bool = False
    """Whether each output channel of a weight has its own scale."""
    embedding_bits: Literal[4, 8] | None = None
    """Bits per value of embeddings; without this key, embeddings stay float."""


class Dynamic(Method[DynamicRecipe]):
    """Quantizes the named types with ``quantize_dynamic``, and the weights of embeddings if requested."""

    recipe = DynamicRecipe
    converts = "tasks.quantize.dynamic_modules:DynamicConverter"

    def spec(self, recipe: DynamicRecipe) -> Spec:
        """Quantize the named types; int8 activations of a call share one range, and with float16 they stay float."""
        granularity: Literal["channel", "tensor"] = "channel" if recipe.per_channel else "tensor"
        if recipe.dtype == "float16":
            layer = Layer("float16", granularity, "float")
        else:
            layer = Layer("int8", granularity, "dynamic-per-tensor")
        layers: dict[str, Layer] = dict.fromkeys(map(str, recipe.modules), layer)
        if recipe.embedding_bits is not None:
            layers["Embedding"] = Layer("int4" if recipe.embedding_bits == 4 else "int8", "channel", layer.activations)
        # float16 weights round far less than int8 weights.
        tolerance = 1e-2 if recipe.dtype == "float16" and recipe.embedding_bits is None else 5e-2
        return Spec(recipe=recipe, layers=layers, engine=recipe.engine, tolerance=tolerance)


class DynamicPerRowRecipe(Recipe):
    """Quantize weights per output channel in advance, and activations per row at run time."""

    method: Literal["dynamic-per-row"]
    modules: tuple[Literal["LSTM", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    embedding_bits: Literal[8] | None = None
    """Bits per value of embeddings; without this key, embeddings stay float."""


class DynamicPerRow(Method[DynamicPerRowRecipe]):
    """Replaces the named types, and embeddings if requested, by this project's int8 modules (docs/int8-lstm.md)."""

    recipe = DynamicPerRowRecipe
    converts = "tasks.quantize.int8_modules:PerRowConverter"

    def spec(self, recipe: DynamicPerRowRecipe) -> Spec:
        """Quantize the named types; the operators compute the same numbers on every processor.

        But preceding float modules round differently, which can move a value by one step.
        """
        types = (*recipe.modules, *(["Embedding"] if recipe.embedding_bits else []))
        layers = dict.fromkeys(types, Layer("int8", "channel", "dynamic-per-row"))
        return Spec(recipe=recipe, layers=layers, operators="own", tolerance=1e-2)


class GraphRecipe(Recipe):
    """Keys of recipes that quantize a model's complete graph."""

    graph: Literal["auto", "eager", "fx"] = Field(default="auto", validation_alias=AliasChoices("graph", "flow"))
    """Graph mode of torch. `auto` uses eager mode if it can express the model, and FX graph mode otherwise."""
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    """Whether each output channel or each weight tensor has its own scale."""

    def layers(self) -> dict[str, Layer]:
        """Quantize every type that has a kernel."""
        return {EVERY: Layer("int8", "channel" if self.weights == "per-channel" else "tensor", "static")}


class StaticRecipe(GraphRecipe):
    """Quantize weights and activations in advance, with ranges from calibration."""

    method: Literal["static"]
    activation_observer: Literal["min-max", "moving-average", "histogram"] = "histogram"
    """Method that derives a range from the observed values."""
    calibration_batches: PositiveInt = 8
    """Number of calibration batches."""
    calibration_batch_size: PositiveInt = 32
    """Samples per calibration batch."""

    def sketch(self, samples: int = 1) -> StaticRecipe:
        """Calibrate on fewer samples."""
        size = min(self.calibration_batch_size, samples)
        batches = min(self.calibration_batches, samples // size)
        return self.model_copy(update={"calibration_batches": batches, "calibration_batch_size": size})


class Static(Method[StaticRecipe]):
    """Attaches observers, calibrates and converts."""

    recipe = StaticRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration",)
    converts = "tasks.quantize.graph.convert:StaticConverter"

    def spec(self, recipe: StaticRecipe) -> Spec:
        """Quantize with static ranges."""
        ranges = Calibration(recipe.activation_observer, recipe.calibration_batches, recipe.calibration_batch_size)
        return Spec(recipe=recipe, layers=recipe.layers(), calibration=ranges, engine=recipe.engine, graph=recipe.graph)


class QatRecipe(GraphRecipe):
    """Fine-tune with simulated quantization, then quantize statically."""

    method: Literal["qat"]
    epochs: PositiveInt = 2
    """Passes over the train split."""
    # Batch normalization cannot train on a single image.
    batch_size: int = Field(default=32, ge=2)
    """Samples per training step."""
    learning_rate: PositiveFloat = 1e-4
    """Learning rate of the optimizer."""
    freeze_observers_after: NonNegativeInt = 1
    """Number of epochs after which ranges are frozen."""
    freeze_batch_norm_after: NonNegativeInt = 1
    """Number of epochs after which the statistics of batch normalization are frozen."""
    seed: int = 0
    """Seed for the order of the samples."""

    def sketch(self, samples: int = 1) -> StaticRecipe:
        """Quantize the same modules statically."""
        common = self.model_dump(include=set(GraphRecipe.model_fields) - {"method"})
        return StaticRecipe(method="static", **common).sketch(samples)


class Qat(Method[QatRecipe]):
    """Quantizes weights and activations to int8, after training that compensates for the error."""

    recipe = QatRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration", "fine-tuning")
    converts = "tasks.quantize.trained:QatConverter"

    def spec(self, recipe: QatRecipe) -> Spec:
        """Quantize with fine-tuned weights and ranges."""
        training = Training(**{name: getattr(recipe, name) for name in Training.__dataclass_fields__})
        return Spec(recipe=recipe, layers=recipe.layers(), training=training, engine=recipe.engine, graph=recipe.graph)
