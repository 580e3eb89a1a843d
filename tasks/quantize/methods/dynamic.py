"""Method ``dynamic``: int8 or float16 weights made ahead, activations quantized as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from storage.errors import QuantizationError, first_line
from tasks.quantize.base import Converted, Method
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.quantize.source import ModelSource


class DynamicRecipe(Recipe):
    """Weights quantized ahead, activations on the fly (``quantize_dynamic``)."""

    method: Literal["dynamic"]
    modules: tuple[Literal["LSTM", "GRU", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    dtype: Literal["qint8", "float16"] = "qint8"
    """int8 weights and activations, or float16 weights."""
    per_channel: bool = False
    """Whether each output channel of a weight has a scale of its own."""
    embedding_bits: Literal[4, 8] | None = None
    """Bits of embeddings; without it they stay float."""


def named_types(recipe: DynamicRecipe) -> frozenset[str]:
    """Names of the module types that a recipe quantizes."""
    return frozenset((*recipe.modules, *(["Embedding"] if recipe.embedding_bits else [])))


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
        from tasks.quantize.coverage import cover_some

        coverage = cover_some(model, recipe.name, _reasons(model, recipe), embeddings=recipe.embedding_bits is not None)
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
        from torch.ao import quantization

        from tasks.quantize.modules import quantize_embeddings

        wanted = [name for name, reason in _reasons(model, recipe).items() if not reason]
        embeddings = [name for name in wanted if isinstance(model.get_submodule(name), torch.nn.Embedding)]
        if recipe.dtype == "float16":
            dtype, qconfig = torch.float16, quantization.float16_dynamic_qconfig
        elif recipe.per_channel:
            dtype, qconfig = torch.qint8, quantization.per_channel_dynamic_qconfig
        else:
            dtype, qconfig = torch.qint8, quantization.default_dynamic_qconfig
        try:
            quantize_embeddings(model, embeddings, recipe.embedding_bits)
            others = {name: qconfig for name in wanted if name not in embeddings}
            quantization.quantize_dynamic(model, others, dtype=dtype, inplace=True)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            why = first_line(error)
            raise QuantizationError(
                f'The engine "{recipe.engine}" cannot do what the recipe "{recipe.name}" asks for: {why}.',
                hint="Choose another engine: x86 and fbgemm support every dynamic recipe.",
            ) from error
        return model


def _reasons(model: nn.Module, recipe: DynamicRecipe) -> dict[str, str]:
    """Why each module stays float, "" for those to quantize."""
    from torch import nn

    from tasks.quantize.coverage import excluded_modules, unnamed

    types: set[type[nn.Module]] = {getattr(nn, name) for name in recipe.modules}
    types |= {nn.Embedding} if recipe.embedding_bits else set()
    excluded = excluded_modules(model, recipe.exclude)

    def why_float(name: str, module: nn.Module) -> str:
        if name in excluded:
            return "excluded by the recipe"
        # The exact type: torch converts no subclass.
        if type(module) not in types:
            kind = next((kind.__name__ for kind in types if isinstance(module, kind)), "")
            return f"a subclass of {kind}, which torch does not convert" if kind else unnamed(type(module).__name__)
        if not name:
            return "it is the whole model, which torch cannot replace"
        if isinstance(module, nn.RNNBase) and (not module.bias or module.proj_size):
            return "torch has no dynamic kernel for recurrent layers without bias or with projections"
        if isinstance(module, nn.Embedding) and recipe.embedding_bits == 4 and module.embedding_dim % 2:
            return "4-bit rows need an even number of values"
        return ""

    return {name: why_float(name, module) for name, module in model.named_modules()}
