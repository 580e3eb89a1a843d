"""The quantization methods: the keys of their recipes, and the specs that the recipes ask for."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveFloat, PositiveInt

from tasks.extensions import Need
from tasks.quantize.base import Method
from tasks.quantize.spec import EVERY, Calibration, Layer, Spec, Training
from tasks.workload.recipe import Recipe

_PLAIN = "tasks.quantize.plain:PlainConverter"


class FloatRecipe(Recipe):
    """The model as it is; the candidates that a speed-up must beat."""

    method: Literal["none"]
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    """Of images and convolutions."""
    onednn: bool = True
    """Without oneDNN's kernels (`false`) a recurrent layer's single steps are faster; a switch of the calling process,
    which no file carries.
    """


class Float(Method[FloatRecipe]):
    """Leaves every module float."""

    recipe = FloatRecipe
    quantizes = False
    converts = _PLAIN

    def spec(self, recipe: FloatRecipe) -> Spec:
        """Ask for nothing; float kernels of another processor round differently in the last digits only."""
        return Spec(recipe=recipe, memory_format=recipe.memory_format, onednn=recipe.onednn, tolerance=1e-4)


class CastRecipe(Recipe):
    """The float model in a shorter floating-point type."""

    method: Literal["cast"]
    dtype: Literal["bfloat16"] = "bfloat16"
    """Of weights and arithmetic."""
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    """Of images and convolutions."""


class Cast(Method[CastRecipe]):
    """Casts every parameter; what comes in and goes out stays float32."""

    recipe = CastRecipe
    quantizes = False
    converts = _PLAIN

    def spec(self, recipe: CastRecipe) -> Spec:
        """Ask for bfloat16, which keeps eight bits of a number, so that each layer rounds by up to 0.4%."""
        return Spec(recipe=recipe, arithmetic=recipe.dtype, memory_format=recipe.memory_format, tolerance=3e-2)


class DynamicRecipe(Recipe):
    """Weights quantized ahead, activations on the fly (``quantize_dynamic``)."""

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    dtype: Literal["qint8", "float16"] = "qint8"
    """int8 weights and activations, or float16 weights."""
    per_channel: bool = False
    """Whether each output channel of a weight has a scale of its own."""
    embedding_bits: Literal[4, 8] | None = None
    """Bits of embeddings; without it they stay float."""


class Dynamic(Method[DynamicRecipe]):
    """``quantize_dynamic`` on the named types, and weight-only quantization of embeddings where asked for."""

    recipe = DynamicRecipe
    converts = "tasks.quantize.dynamic_modules:DynamicConverter"

    def spec(self, recipe: DynamicRecipe) -> Spec:
        """Ask for the named types; int8 activations share one range in each call of a module, float16's stay float."""
        granularity: Literal["channel", "tensor"] = "channel" if recipe.per_channel else "tensor"
        if recipe.dtype == "float16":
            layer = Layer("float16", granularity, "float")
        else:
            layer = Layer("int8", granularity, "dynamic-per-tensor")
        layers: dict[str, Layer] = dict.fromkeys(map(str, recipe.modules), layer)
        if recipe.embedding_bits is not None:
            layers["Embedding"] = Layer("int4" if recipe.embedding_bits == 4 else "int8", "channel", layer.activations)
        # float16 weights alone round far less than int8 ones.
        tolerance = 1e-2 if recipe.dtype == "float16" and recipe.embedding_bits is None else 5e-2
        return Spec(recipe=recipe, layers=layers, engine=recipe.engine, tolerance=tolerance)


class DynamicPerRowRecipe(Recipe):
    """Weights quantized ahead per output channel, activations on the fly per row."""

    method: Literal["dynamic-per-row"]
    modules: tuple[Literal["LSTM", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    embedding_bits: Literal[8] | None = None
    """Bits of embeddings; without it they stay float."""


class DynamicPerRow(Method[DynamicPerRowRecipe]):
    """Replaces the named types by int8 modules of this project (docs/int8-lstm.md), embeddings where asked for."""

    recipe = DynamicPerRowRecipe
    converts = "tasks.quantize.int8_modules:PerRowConverter"

    def spec(self, recipe: DynamicPerRowRecipe) -> Spec:
        """Ask for the named types; the operators compute the same on every processor.

        A float module before them may move a value by a step.
        """
        types = (*recipe.modules, *(["Embedding"] if recipe.embedding_bits else []))
        layers = dict.fromkeys(types, Layer("int8", "channel", "dynamic-per-row"))
        return Spec(recipe=recipe, layers=layers, operators="own", tolerance=1e-2)


class GraphRecipe(Recipe):
    """What recipes that quantize a model's whole graph have in common."""

    graph: Literal["auto", "eager", "fx"] = Field(default="auto", validation_alias=AliasChoices("graph", "flow"))
    """How torch does it: in eager mode where that can express the model and FX graph mode elsewhere (`auto`), or in the
    named one.
    """
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    """Whether each output channel has a scale of its own."""

    def layers(self) -> dict[str, Layer]:
        """Quantize every type that there is a kernel for."""
        return {EVERY: Layer("int8", "channel" if self.weights == "per-channel" else "tensor", "static")}


class StaticRecipe(GraphRecipe):
    """Weights and activations quantized ahead, from ranges seen in calibration."""

    method: Literal["static"]
    activation_observer: Literal["min-max", "moving-average", "histogram"] = "histogram"
    """How a range is made of what is seen."""
    calibration_batches: PositiveInt = 8
    """Batches that are shown."""
    calibration_batch_size: PositiveInt = 32
    """Samples in a batch."""

    def sketch(self, samples: int = 1) -> StaticRecipe:
        """Calibrate on fewer samples."""
        size = min(self.calibration_batch_size, samples)
        batches = min(self.calibration_batches, samples // size)
        return self.model_copy(update={"calibration_batches": batches, "calibration_batch_size": size})


class Static(Method[StaticRecipe]):
    """Observe, calibrate, convert."""

    recipe = StaticRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration",)
    converts = "tasks.quantize.graph.convert:StaticConverter"

    def spec(self, recipe: StaticRecipe) -> Spec:
        """Ask for static ranges."""
        ranges = Calibration(recipe.activation_observer, recipe.calibration_batches, recipe.calibration_batch_size)
        return Spec(recipe=recipe, layers=recipe.layers(), calibration=ranges, engine=recipe.engine, graph=recipe.graph)


class QatRecipe(GraphRecipe):
    """Static quantization after fine-tuning with simulated quantization."""

    method: Literal["qat"]
    epochs: PositiveInt = 2
    """Passes over the train split."""
    # Batch normalization cannot train on a single image.
    batch_size: int = Field(default=32, ge=2)
    """Samples in one step."""
    learning_rate: PositiveFloat = 1e-4
    """Of the optimizer."""
    freeze_observers_after: NonNegativeInt = 1
    """Epochs after which ranges stay."""
    freeze_batch_norm_after: NonNegativeInt = 1
    """Epochs after which batch normalization's statistics stay."""
    seed: int = 0
    """Decides the order of the samples."""

    def sketch(self, samples: int = 1) -> StaticRecipe:
        """Static quantization of the same modules."""
        common = self.model_dump(include=set(GraphRecipe.model_fields) - {"method"})
        return StaticRecipe(method="static", **common).sketch(samples)


class Qat(Method[QatRecipe]):
    """Weights and activations to int8 after training against the error that this makes."""

    recipe = QatRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration", "fine-tuning")
    converts = "tasks.quantize.trained:QatConverter"

    def spec(self, recipe: QatRecipe) -> Spec:
        """Ask for weights and ranges that are fine-tuned."""
        training = Training(**{name: getattr(recipe, name) for name in Training.__dataclass_fields__})
        return Spec(recipe=recipe, layers=recipe.layers(), training=training, engine=recipe.engine, graph=recipe.graph)
