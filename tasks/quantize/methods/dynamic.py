"""Method ``dynamic``: int8 or float16 weights made ahead, activations quantized as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from storage.errors import QuantizationError
from tasks.quantize.base import Converted, Method
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.quantize.coverage import Leaf
    from tasks.quantize.source import ModelSource


class DynamicRecipe(Recipe):
    """Weights quantized ahead, activations on the fly (``quantize_dynamic``)."""

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    dtype: Literal["qint8", "float16"] = "qint8"
    per_channel: bool = False
    embedding_bits: Literal[4, 8] | None = None


class Dynamic(Method[DynamicRecipe]):
    """``quantize_dynamic`` on the named types, and weight-only quantization of embeddings where asked for."""

    recipe = DynamicRecipe

    def convert(self, model: nn.Module, recipe: DynamicRecipe, source: ModelSource) -> Converted:
        """Quantize every module that the recipe names and does not exclude.

        Raises
        ------
        QuantizationError
            The recipe quantizes nothing, excludes a module that is not there, or asks for what torch cannot do.
        """
        from tasks.quantize.coverage import cover, leaves_of

        leaves = leaves_of(model)
        reasons = _reasons(model, recipe)
        wanted = _wanted(model, reasons)
        _refuse_nothing(recipe, leaves, reasons, wanted)
        coverage = cover(leaves, lambda leaf: reasons[leaf.name])
        return Converted(self.skeleton(model, recipe, "", source.example_inputs), "", coverage)

    def tolerance_share(self, recipe: DynamicRecipe) -> float:
        """float16 weights alone round far less than int8 ones."""
        return 1e-2 if recipe.dtype == "float16" and recipe.embedding_bits is None else super().tolerance_share(recipe)

    def couples_rows(self, recipe: DynamicRecipe) -> bool:
        """int8 activations share one range in each call of a module; with float16 weights they stay float."""
        return recipe.dtype == "qint8"

    def skeleton(
        self, model: nn.Module, recipe: DynamicRecipe, graph: str, example_inputs: Mapping[str, Tensor]
    ) -> nn.Module:
        """Convert whatever weights the model has: dynamic quantization needs no data."""
        import torch
        from torch import nn
        from torch.ao import quantization

        from tasks.quantize.embedding import quantize_embeddings
        from tasks.quantize.warnings import without_deprecations

        wanted = _wanted(model, _reasons(model, recipe))
        embeddings = [name for name, module in wanted.items() if isinstance(module, nn.Embedding)]
        qconfig = (
            quantization.float16_dynamic_qconfig
            if recipe.dtype == "float16"
            else quantization.per_channel_dynamic_qconfig
            if recipe.per_channel
            else quantization.default_dynamic_qconfig
        )
        try:
            with without_deprecations():
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
                hint="Choose another engine: x86 and fbgemm support every dynamic recipe.",
            ) from error
        return model


def _reasons(model: nn.Module, recipe: DynamicRecipe) -> dict[str, str]:
    """Why each module stays float, "" for those to quantize."""
    from torch import nn

    from tasks.quantize.coverage import excluded_modules

    types: set[type[nn.Module]] = {getattr(nn, name) for name in recipe.modules}
    types |= {nn.Embedding} if recipe.embedding_bits else set()
    excluded = excluded_modules(model, recipe.exclude)
    return {
        name: "excluded by the recipe" if name in excluded else _obstacle(name, module, types, recipe.embedding_bits)
        for name, module in model.named_modules()
    }


def _obstacle(name: str, module: nn.Module, types: set[type[nn.Module]], embedding_bits: int | None) -> str:
    from torch import nn

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
    from torch import nn

    embeddings = [name for name, module in wanted.items() if isinstance(module, nn.Embedding)]
    if not wanted or (recipe.embedding_bits and not embeddings):
        what = "no embedding" if wanted else "nothing"
        raise QuantizationError(
            f'The recipe "{recipe.name}" quantizes {what} of the model.',
            hint="; ".join(f"{leaf.name or 'the model'} ({leaf.type}): {reasons[leaf.name]}" for leaf in leaves) + ".",
        )
