"""Method ``static``: weights and activations to int8 by ranges seen in calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import AliasChoices, Field, PositiveInt

from tasks.extensions import Need
from tasks.quantize.base import Method
from tasks.quantize.spec import EVERY, Calibration, Layer, Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from tasks.quantize.graph.convert import StaticConverter


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

    def sketch(self) -> StaticRecipe:
        """Calibrate on one sample."""
        return self.model_copy(update={"calibration_batches": 1, "calibration_batch_size": 1})


class Static(Method[StaticRecipe]):
    """Observe, calibrate, convert."""

    recipe = StaticRecipe
    needs: ClassVar[tuple[Need, ...]] = ("calibration",)

    def spec(self, recipe: StaticRecipe) -> Spec:
        """Ask for static ranges."""
        ranges = Calibration(recipe.activation_observer, recipe.calibration_batches, recipe.calibration_batch_size)
        return Spec(recipe=recipe, layers=recipe.layers(), calibration=ranges, engine=recipe.engine, graph=recipe.graph)

    def converter(self) -> StaticConverter:
        """Import torch's graph modes."""
        from tasks.quantize.graph.convert import StaticConverter

        return StaticConverter()
