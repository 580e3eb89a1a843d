"""Method ``dynamic``: int8 or float16 weights made ahead, activations quantized as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.ao import quantization

from storage.errors import QuantizationError
from tasks.quantize.base import Context, Converted
from tasks.quantize.coverage import cover, excluded_modules, leaves_of
from tasks.quantize.embedding import quantize_embeddings
from tasks.quantize.quiet import quiet
from tasks.workload.recipe import DynamicRecipe, Recipe

_TYPES: dict[str, type[nn.Module]] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "Linear": nn.Linear}


class Dynamic:
    """``quantize_dynamic`` on the named types, and weight-only quantization of embeddings where asked for."""

    def convert(self, model: nn.Module, recipe: Recipe, context: Context) -> Converted:
        """Quantize every module that the recipe names and does not exclude.

        Raises
        ------
        QuantizationError
            The recipe quantizes nothing, excludes a module that is not there, or asks for what torch cannot do.
        """
        recipe = cast(DynamicRecipe, recipe)
        leaves = leaves_of(model)
        excluded = excluded_modules(model, recipe.exclude)
        wanted = _wanted(model, recipe, excluded)
        if not wanted:
            types = [*recipe.modules, *(["Embedding"] if recipe.embedding_bits else [])]
            raise QuantizationError(
                f'The recipe "{recipe.name}" quantizes nothing: the model has no module of the types '
                f"{', '.join(types)} that it does not exclude.",
                hint=f"The model's types are: {', '.join(sorted({leaf.type for leaf in leaves}))}.",
            )
        converted = self.skeleton(model, recipe, "", context.example_inputs)
        reasons = dict.fromkeys(excluded, "excluded by the recipe")
        return Converted(converted, "", cover(leaves, wanted, reasons, "the recipe does not name this type"))

    def skeleton(self, model: nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Convert whatever weights the model has: dynamic quantization needs no data."""
        del flow, example_inputs
        recipe = cast(DynamicRecipe, recipe)
        wanted = _wanted(model, recipe, excluded_modules(model, recipe.exclude))
        embeddings = [name for name, module in wanted.items() if isinstance(module, nn.Embedding)]
        qconfig = _qconfig(recipe)
        with quiet():
            quantize_embeddings(model, embeddings, recipe.embedding_bits)
            quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
                model,
                {name: qconfig for name in wanted if name not in embeddings},
                dtype=_dtype(recipe),
                inplace=True,
            )
        return model


def _wanted(model: nn.Module, recipe: DynamicRecipe, excluded: frozenset[str]) -> dict[str, nn.Module]:
    types = tuple(_TYPES[name] for name in recipe.modules) + ((nn.Embedding,) if recipe.embedding_bits else ())
    # The exact type only: torch converts no subclass.
    return {
        name: module
        for name, module in model.named_modules()
        if name and type(module) in types and name not in excluded
    }


def _dtype(recipe: DynamicRecipe) -> torch.dtype:
    return torch.float16 if recipe.dtype == "float16" else torch.qint8


def _qconfig(recipe: DynamicRecipe) -> Any:
    if recipe.dtype == "float16":
        return quantization.float16_dynamic_qconfig
    return quantization.per_channel_dynamic_qconfig if recipe.per_channel else quantization.default_dynamic_qconfig
