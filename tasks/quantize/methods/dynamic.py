"""Method ``dynamic``: int8 or float16 weights made ahead, activations quantized as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tasks.quantize.base import Method
from tasks.quantize.spec import Layer, Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.quantize.dynamic_modules import DynamicConverter


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

    def converter(self) -> DynamicConverter:
        """Import torch's dynamic quantization."""
        from tasks.quantize.dynamic_modules import DynamicConverter

        return DynamicConverter()
