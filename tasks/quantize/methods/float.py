"""Method ``none``: the float model as it is, in one memory format or the other, with oneDNN or without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from tasks.quantize.base import Converted, PlainMethod, PlainRecipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.quantize.source import ModelSource


class FloatRecipe(PlainRecipe):
    """The model as it is; the candidates that a speed-up must beat."""

    method: Literal["none"]
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    """Of images and convolutions."""
    onednn: bool = True
    """Without oneDNN's kernels (`false`) a recurrent layer's single steps are faster; a switch of the calling process,
    which no file carries.
    """


class Float(PlainMethod[FloatRecipe]):
    """Leaves every module float."""

    recipe = FloatRecipe
    quantizes = False

    def convert(self, model: nn.Module, recipe: FloatRecipe, source: ModelSource) -> Converted:
        """Bring the model into the recipe's memory format."""
        from tasks.quantize.coverage import cover, leaves_of

        coverage = cover(leaves_of(model), lambda _: "a float recipe")
        return Converted(self.skeleton(model, recipe, "", source.example_inputs), "", coverage)

    def skeleton(
        self, model: nn.Module, recipe: FloatRecipe, graph: str, example_inputs: Mapping[str, Tensor]
    ) -> nn.Module:
        """The model itself, wrapped where its inputs need another memory format."""
        from tasks.quantize.plain_modules import ChannelsLast

        return ChannelsLast(model) if recipe.memory_format == "channels-last" else model

    def tolerance_share(self, recipe: FloatRecipe) -> float:
        """Float kernels of another processor round differently in the last digits only."""
        return 1e-4

    @contextmanager
    def running(self, recipe: FloatRecipe) -> Iterator[None]:
        """Switch oneDNN off where the recipe says so, and back to what it was afterwards."""
        import torch

        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(before and recipe.onednn)
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(before)
