"""Method ``cast``: weights and arithmetic in bfloat16, on processors that multiply it in one instruction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from storage.errors import UnavailableError
from tasks.machine import this_machine
from tasks.quantize.base import Converted, PlainMethod, PlainRecipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.quantize.source import ModelSource

INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


class CastRecipe(PlainRecipe):
    """The float model in a shorter floating-point type."""

    method: Literal["cast"]
    dtype: Literal["bfloat16"] = "bfloat16"
    """Of weights and arithmetic."""
    memory_format: Literal["contiguous", "channels-last"] = "contiguous"
    """Of images and convolutions."""


class Cast(PlainMethod[CastRecipe]):
    """Casts every parameter; what comes in and goes out stays float32."""

    recipe = CastRecipe
    quantizes = False

    def convert(self, model: nn.Module, recipe: CastRecipe, source: ModelSource) -> Converted:
        """Cast the model.

        Raises
        ------
        UnavailableError
            The processor has no instructions for bfloat16: it would be emulated, at a fraction of float's speed.
        """
        from tasks.quantize.coverage import cover, leaves_of

        require_bfloat16(recipe)
        coverage = cover(leaves_of(model), lambda _: "a cast is no quantization")
        return Converted(self.skeleton(model, recipe, "", source.example_inputs), "", coverage)

    def skeleton(
        self, model: nn.Module, recipe: CastRecipe, graph: str, example_inputs: Mapping[str, Tensor]
    ) -> nn.Module:
        """The model in the recipe's dtype, wrapped so that its inputs and outputs are float32."""
        import torch

        from tasks.quantize.plain_modules import Cast, ChannelsLast

        cast = Cast(model, getattr(torch, recipe.dtype))
        return ChannelsLast(cast) if recipe.memory_format == "channels-last" else cast

    def tolerance_share(self, recipe: CastRecipe) -> float:
        """bfloat16 keeps eight bits of a number, so that each layer rounds by up to 0.4%."""
        return 3e-2


def computes_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in one instruction."""
    return bool(set(INSTRUCTIONS) & set(this_machine().isa))


def require_bfloat16(recipe: CastRecipe) -> None:
    """Refuse, with an `UnavailableError`, a processor that can only emulate bfloat16."""
    if not computes_bfloat16():
        raise UnavailableError(
            f'The recipe "{recipe.name}" needs a processor with {" or ".join(INSTRUCTIONS)}; this one has neither.',
            hint="Drop the recipe on machines of this kind, or run the night on another.",
        )
