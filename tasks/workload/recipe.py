"""``[[recipe]]``: how to quantize."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from tasks.workload.base import Section, Slug

Runtime = Literal["eager", "torchscript"]
Engine = Literal["x86", "fbgemm", "onednn", "qnnpack"]


class _Recipe(Section):
    name: Slug
    runtimes: tuple[Runtime, ...] = Field(default=("eager",), min_length=1)
    engine: Engine = "x86"
    exclude: tuple[str, ...] = ()

    @field_validator("runtimes")
    @classmethod
    def _each_runtime_once(cls, runtimes: tuple[Runtime, ...]) -> tuple[Runtime, ...]:
        if len(set(runtimes)) < len(runtimes):
            raise ValueError("runtimes names one twice; each candidate is measured once")
        return runtimes


class FloatRecipe(_Recipe):
    """The model as it is; the candidates that a speed-up must beat.

    ``onednn = false`` runs it without oneDNN's kernels, which for a recurrent layer's single steps are slower than
    torch's own. It is a switch of the calling process, which a TorchScript file cannot carry: eager only.
    """

    method: Literal["none"]
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    onednn: bool = True

    @model_validator(mode="after")
    def _switch_is_for_eager_only(self) -> Self:
        if not self.onednn and self.runtimes != ("eager",):
            raise ValueError(f'recipe "{self.name}": onednn = false needs runtimes = ["eager"]')
        return self


class DynamicRecipe(_Recipe):
    """Weights quantized ahead, activations on the fly (``quantize_dynamic``)."""

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    dtype: Literal["qint8", "float16"] = "qint8"
    per_channel: bool = False
    embedding_bits: Literal[4, 8] | None = None


class StaticRecipe(_Recipe):
    """Weights and activations quantized ahead, from ranges seen in calibration."""

    method: Literal["static"]
    flow: Literal["auto", "eager", "fx"] = "auto"
    activation_observer: Literal["min-max", "moving-average", "histogram"] = "histogram"
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    calibration_batches: PositiveInt = 8
    calibration_batch_size: PositiveInt = 32


class QatRecipe(_Recipe):
    """Static quantization after fine-tuning with simulated quantization."""

    method: Literal["qat"]
    flow: Literal["auto", "eager", "fx"] = "auto"
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    epochs: PositiveInt = 2
    # Batch normalization cannot train on a single image.
    batch_size: int = Field(default=32, ge=2)
    learning_rate: PositiveFloat = 1e-4
    freeze_observers_after: NonNegativeInt = 1
    freeze_batch_norm_after: NonNegativeInt = 1
    seed: int = 0


Recipe = Annotated[FloatRecipe | DynamicRecipe | StaticRecipe | QatRecipe, Field(discriminator="method")]
