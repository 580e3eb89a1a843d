"""Method ``dynamic``: int8 or float16 weights made ahead, activations quantized as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.ao import quantization

from storage.errors import QuantizationError
from tasks.quantize import embedding
from tasks.quantize.base import Context, Converted
from tasks.quantize.coverage import Leaf, cover, excluded_modules, leaves_of
from tasks.quantize.embedding import quantize_embeddings
from tasks.quantize.warnings import quiet
from tasks.workload.recipe import DynamicRecipe, Recipe

# What besides this module decides the result.
PARTS = (embedding,)

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
        reasons = _reasons(model, recipe)
        wanted = _wanted(model, reasons)
        _refuse_nothing(recipe, leaves, reasons, wanted)
        return Converted(
            self.skeleton(model, recipe, "", context.example_inputs), "", cover(leaves, wanted, reasons, otherwise="")
        )

    def skeleton(self, model: nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Convert whatever weights the model has: dynamic quantization needs no data."""
        del flow, example_inputs
        recipe = cast(DynamicRecipe, recipe)
        wanted = _wanted(model, _reasons(model, recipe))
        embeddings = [name for name, module in wanted.items() if isinstance(module, nn.Embedding)]
        qconfig = _qconfig(recipe)
        try:
            with quiet():
                quantize_embeddings(model, embeddings, recipe.embedding_bits)
                quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
                    model,
                    {name: qconfig for name in wanted if name not in embeddings},
                    dtype=torch.float16 if recipe.dtype == "float16" else torch.qint8,
                    inplace=True,
                )
        except RuntimeError as error:
            raise QuantizationError(
                f'The recipe "{recipe.name}" asks for what the engine "{recipe.engine}" cannot do: {error}',
                hint="Choose another engine: x86 and fbgemm know every dynamic recipe.",
            ) from error
        return model


def _reasons(model: nn.Module, recipe: DynamicRecipe) -> dict[str, str]:
    """Why each module stays float, "" for those to quantize."""
    types = {_TYPES[name] for name in recipe.modules} | ({nn.Embedding} if recipe.embedding_bits else set())
    excluded = excluded_modules(model, recipe.exclude)
    return {
        name: "excluded by the recipe" if name in excluded else _obstacle(name, module, types, recipe.embedding_bits)
        for name, module in model.named_modules()
    }


def _obstacle(name: str, module: nn.Module, types: set[type[nn.Module]], embedding_bits: int | None) -> str:
    # The exact type: torch converts no subclass.
    if type(module) not in types:
        return f"the recipe does not name the type {type(module).__name__}"
    if not name:
        return "it is the whole model, which torch cannot replace"
    if isinstance(module, nn.RNNBase) and (not module.bias or module.proj_size):
        return "torch has no dynamic kernel for recurrent layers without bias or with projections"
    if isinstance(module, nn.Embedding) and embedding_bits == 4 and module.embedding_dim % 2:
        return "4-bit rows need an even number of values"
    return ""


def _wanted(model: nn.Module, reasons: Mapping[str, str]) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if not reasons[name]}


def _refuse_nothing(
    recipe: DynamicRecipe, leaves: Sequence[Leaf], reasons: Mapping[str, str], wanted: Mapping[str, nn.Module]
) -> None:
    embeddings = [name for name, module in wanted.items() if isinstance(module, nn.Embedding)]
    if not wanted or (recipe.embedding_bits and not embeddings):
        what = "no embedding" if wanted else "nothing"
        raise QuantizationError(
            f'The recipe "{recipe.name}" quantizes {what} of the model.',
            hint="; ".join(f"{leaf.name or 'the model'} ({leaf.type}): {reasons[leaf.name]}" for leaf in leaves) + ".",
        )


def _qconfig(recipe: DynamicRecipe) -> Any:
    if recipe.dtype == "float16":
        return quantization.float16_dynamic_qconfig
    return quantization.per_channel_dynamic_qconfig if recipe.per_channel else quantization.default_dynamic_qconfig
