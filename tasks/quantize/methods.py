"""The quantization methods, and the keys and specs of their recipes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.quantize.spec import EVERY, Calibration, Layer, MethodRecipe, Spec, Training
from tasks.workload.recipe import Axis, MemoryFormat, Observer, WeightScales

_PLAIN = "tasks.quantize.coverage:PlainConverter"
_MEMORY_FORMAT = Axis("memory_format", ("contiguous", "channels-last"), frozenset({"Conv2d"}))
_EMBEDDING = frozenset({"Embedding"})
_ENGINE = Axis("engine", ())  # no fixed values, because the available engines depend on the processor
_WEIGHTS = Axis("weights", ("per-channel", "per-tensor"), same_speed=True)
_OBSERVER = Axis("activation_observer", ("histogram", "moving-average", "min-max"), same_speed=True)


class FloatRecipe(MethodRecipe):
    """A recipe that leaves the model in float, for baselines and comparisons."""

    quantizes = False
    converts = _PLAIN
    axes = (_MEMORY_FORMAT, Axis("onednn", (True, False), frozenset({"LSTM", "GRU"})))

    method: Literal["none"]
    memory_format: MemoryFormat = "contiguous"
    """Memory format of images and convolutions."""
    onednn: bool = True
    """Whether to use oneDNN's kernels. Single steps of recurrent layers can be faster without oneDNN. The setting
    affects the process that runs the model, and is not stored in model files.
    """

    def spec(self) -> Spec:
        """Return a spec with a small tolerance, because float results on two processors differ only slightly."""
        return Spec.of(self, memory_format=self.memory_format, onednn=self.onednn, tolerance=1e-4)


class CastRecipe(MethodRecipe):
    """A recipe that converts the model to bfloat16."""

    quantizes = False
    converts = _PLAIN
    axes = (_MEMORY_FORMAT,)

    method: Literal["cast"]
    memory_format: MemoryFormat = "contiguous"
    """Memory format of images and convolutions."""

    def spec(self) -> Spec:
        """Return a spec for bfloat16, whose eight significant bits cause rounding errors of up to 0.4% per layer."""
        return Spec.of(self, arithmetic="bfloat16", memory_format=self.memory_format, tolerance=3e-2)


class DynamicRecipe(MethodRecipe):
    """A recipe that quantizes weights in advance, and activations at run time (``quantize_dynamic``)."""

    converts = "tasks.quantize.dynamic_modules:DynamicConverter"
    axes = (
        Axis("embedding_bits", (None, 8, 4), _EMBEDDING),
        Axis("dtype", ("qint8", "float16")),
        _ENGINE,
        Axis("per_channel", (False, True), same_speed=True),
    )

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    dtype: Literal["qint8", "float16"] = "qint8"
    """Type of the weights. `qint8` also quantizes activations to int8; with `float16`, activations stay in float32."""
    per_channel: bool = False
    """Whether each output channel of a weight has its own scale."""
    embedding_bits: Literal[4, 8] | None = None
    """Number of bits per embedding value. Without this key, embeddings stay in float."""

    def spec(self) -> Spec:
        """Return a spec in which all rows of a call share one int8 range per activation."""
        granularity: Literal["channel", "tensor"] = "channel" if self.per_channel else "tensor"
        if self.dtype == "float16":
            layer = Layer("float16", granularity, "float")
        else:
            layer = Layer("int8", granularity, "dynamic-per-tensor")
        layers: dict[str, Layer] = dict.fromkeys(map(str, self.modules), layer)
        if self.embedding_bits is not None:
            layers["Embedding"] = Layer("int4" if self.embedding_bits == 4 else "int8", "channel", layer.activations)
        # Rounding errors are far smaller in float16 than in int8.
        tolerance = 1e-2 if self.dtype == "float16" and self.embedding_bits is None else 5e-2
        return Spec.of(self, layers=layers, engine=self.engine, tolerance=tolerance)


class DynamicPerRowRecipe(MethodRecipe):
    """A recipe that quantizes weights per output channel in advance, and activations per row at run time."""

    converts = "tasks.quantize.int8_modules:PerRowConverter"
    axes = (Axis("embedding_bits", (None, 8), _EMBEDDING),)

    method: Literal["dynamic-per-row"]
    modules: tuple[Literal["LSTM", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    embedding_bits: Literal[8] | None = None
    """Number of bits per embedding value. Without this key, embeddings stay in float."""
    linear_bits: Literal[4, 8] = 8
    """Number of bits per weight of a Linear layer. With 4 bits, every 32 weights share a scale (`executorch` only)."""

    def spec(self) -> Spec:
        """Return a spec whose operators compute the same numbers on every processor."""
        types = (*self.modules, *(["Embedding"] if self.embedding_bits else []))
        layers = dict.fromkeys(types, Layer("int8", "channel", "dynamic-per-row"))
        if "Linear" in layers and self.linear_bits == 4:
            layers["Linear"] = Layer("int4", "group", "dynamic-per-row")
        return Spec.of(self, layers=layers, operators="own", tolerance=1e-2)


class GraphRecipe(MethodRecipe):
    """A recipe that quantizes a model's complete graph."""

    weights: WeightScales = "per-channel"
    """Granularity of the weights' scales: one scale per output channel, or one scale per weight tensor."""

    def layers(self) -> dict[str, Layer]:
        """Return int8 settings for every module type that has an int8 kernel."""
        return {EVERY: Layer("int8", "channel" if self.weights == "per-channel" else "tensor", "static")}


class StaticRecipe(GraphRecipe):
    """A recipe that quantizes weights and activations in advance, with calibrated ranges."""

    needs = ("calibration",)
    converts = "tasks.quantize.graph.convert:StaticConverter"
    axes = (_ENGINE, _WEIGHTS, _OBSERVER)

    method: Literal["static"]
    activation_observer: Observer = "histogram"
    """Method for deriving an activation's range from observed values."""
    calibration_batches: PositiveInt = 8
    """Number of calibration batches."""
    calibration_batch_size: PositiveInt = 32
    """Number of samples per calibration batch."""

    def cheap_variant(self, samples: int = 1) -> StaticRecipe:
        """Return a copy of the recipe that calibrates on at most `samples` samples."""
        size = min(self.calibration_batch_size, samples)
        batches = min(self.calibration_batches, samples // size)
        return self.model_copy(update={"calibration_batches": batches, "calibration_batch_size": size})

    def spec(self) -> Spec:
        """Return a spec that calibrates static ranges."""
        ranges = Calibration(self.activation_observer, self.calibration_batches, self.calibration_batch_size)
        return Spec.of(self, layers=self.layers(), calibration=ranges, engine=self.engine)


class QatRecipe(GraphRecipe):
    """A recipe that fine-tunes the model with simulated quantization, and then quantizes the model statically."""

    needs = ("calibration", "fine-tuning")
    converts = "tasks.quantize.trained:QatConverter"
    axes = (_ENGINE, _WEIGHTS)

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

    def cheap_variant(self, samples: int = 1) -> StaticRecipe:
        """Return a static recipe that quantizes the same modules as this recipe."""
        common = self.model_dump(include=set(GraphRecipe.model_fields) - {"method"})
        return StaticRecipe(method="static", **common).cheap_variant(samples)

    def spec(self) -> Spec:
        """Return a spec that fine-tunes weights and ranges."""
        training = Training(**{name: getattr(self, name) for name in Training.__dataclass_fields__})
        return Spec.of(self, layers=self.layers(), training=training, engine=self.engine)
