"""Method ``static``: weights and activations to int8 by ranges seen in calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from pydantic import AliasChoices, Field, PositiveInt

from tasks.domains.base import GivesCalibration
from tasks.quantize.base import Converted, Method
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.quantize.base import Need
    from tasks.quantize.source import ModelSource


class GraphRecipe(Recipe):
    """What recipes that quantize a model's whole graph have in common."""

    graph: Literal["auto", "eager", "fx"] = Field(default="auto", validation_alias=AliasChoices("graph", "flow"))
    """How torch does it: in eager mode where that can express the model and FX graph mode elsewhere (`auto`), or in the
    named one.
    """
    weights: Literal["per-channel", "per-tensor"] = "per-channel"
    """Whether each output channel has a scale of its own."""


G = TypeVar("G", bound=GraphRecipe)


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


class GraphMethod(Method[G]):
    """A method that quantizes a model's whole graph; it needs calibration inputs for the first ranges at least."""

    needs: ClassVar[tuple[Need, ...]] = (GivesCalibration,)

    def skeleton(self, model: nn.Module, recipe: G, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """The same structure with default scales; `graph` is the mode that `convert` took."""
        from tasks.quantize.graph.convert import skeleton

        return skeleton(model, recipe, graph, example_inputs)


class Static(GraphMethod[StaticRecipe]):
    """Observe, calibrate, convert."""

    recipe = StaticRecipe

    def convert(self, model: nn.Module, recipe: StaticRecipe, source: ModelSource) -> Converted:
        """Quantize a float model; see `tasks.quantize.graph.convert`."""
        from tasks.quantize.graph.convert import quantize_statically

        return quantize_statically(model, recipe, source)
