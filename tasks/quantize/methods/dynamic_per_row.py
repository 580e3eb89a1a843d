"""Method ``dynamic-per-row``: int8 weights made ahead, activations quantized as they come, each row by itself.

Nothing of torch's own quantization is used: weights are plain int8 tensors, and operators of this project compute with
them. See docs/int8-lstm.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tasks.quantize.base import Method
from tasks.quantize.spec import Layer, Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.quantize.int8_modules import PerRowConverter


class DynamicPerRowRecipe(Recipe):
    """Weights quantized ahead per output channel, activations on the fly per row."""

    method: Literal["dynamic-per-row"]
    modules: tuple[Literal["LSTM", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    embedding_bits: Literal[8] | None = None
    """Bits of embeddings; without it they stay float."""


class DynamicPerRow(Method[DynamicPerRowRecipe]):
    """Replaces the named types, and embeddings where asked for."""

    recipe = DynamicPerRowRecipe

    def spec(self, recipe: DynamicPerRowRecipe) -> Spec:
        """Ask for the named types, computed by operators that are no part of torch.

        They compute the same on every processor; a float module before them may move a value by a step.
        """
        types = (*recipe.modules, *(["Embedding"] if recipe.embedding_bits else []))
        layers = dict.fromkeys(types, Layer("int8", "channel", "dynamic-per-row"))
        return Spec(recipe=recipe, layers=layers, operators="own", tolerance=1e-2)

    def converter(self) -> PerRowConverter:
        """Import the int8 modules."""
        from tasks.quantize.int8_modules import PerRowConverter

        return PerRowConverter()
