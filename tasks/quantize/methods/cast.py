"""Method ``cast``: weights and arithmetic in bfloat16, on processors that multiply it in one instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tasks.quantize.base import Method
from tasks.quantize.spec import Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.quantize.plain import PlainConverter


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

    def spec(self, recipe: CastRecipe) -> Spec:
        """Ask for bfloat16, which keeps eight bits of a number, so that each layer rounds by up to 0.4%."""
        return Spec(recipe=recipe, arithmetic=recipe.dtype, memory_format=recipe.memory_format, tolerance=3e-2)

    def converter(self) -> PlainConverter:
        """Import the wrappers."""
        from tasks.quantize.plain import PlainConverter

        return PlainConverter()
