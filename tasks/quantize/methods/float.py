"""Method ``none``: the float model as it is, in one memory format or the other, with oneDNN or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tasks.quantize.base import Method
from tasks.quantize.spec import Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.quantize.plain import PlainConverter


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

    def spec(self, recipe: FloatRecipe) -> Spec:
        """Ask for nothing; float kernels of another processor round differently in the last digits only."""
        return Spec(recipe=recipe, memory_format=recipe.memory_format, onednn=recipe.onednn, tolerance=1e-4)

    def converter(self) -> PlainConverter:
        """Import the wrappers."""
        from tasks.quantize.plain import PlainConverter

        return PlainConverter()
