"""Method ``dynamic-per-row``: int8 weights made ahead, activations quantized as they come, each row by itself.

Nothing of torch's own quantization is used: weights are plain int8 tensors, and operators of this project compute with
them. See docs/int8-lstm.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tasks.quantize.base import Converted, PlainMethod, PlainRecipe

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from tasks.job import Workspace
    from tasks.quantize.source import ModelSource


class DynamicPerRowRecipe(PlainRecipe):
    """Weights quantized ahead per output channel, activations on the fly per row."""

    method: Literal["dynamic-per-row"]
    modules: tuple[Literal["LSTM", "Linear"], ...] = ("LSTM", "Linear")
    """Types of modules to quantize."""
    embedding_bits: Literal[8] | None = None
    """Bits of embeddings; without it they stay float."""

    @property
    def needs_library(self) -> bool:
        """The operators are no part of torch."""
        return True


class DynamicPerRow(PlainMethod[DynamicPerRowRecipe]):
    """Replaces the named types, and embeddings where asked for."""

    recipe = DynamicPerRowRecipe

    def convert(self, model: nn.Module, recipe: DynamicPerRowRecipe, source: ModelSource) -> Converted:
        """Quantize every module that the recipe names and does not exclude.

        Raises
        ------
        QuantizationError
            The recipe quantizes nothing, excludes a module that is not there, or its operators are not loaded.
        """
        from tasks.quantize.coverage import cover_some

        coverage = cover_some(model, recipe.name, _reasons(model, recipe), embeddings=recipe.embedding_bits is not None)
        return Converted(self.skeleton(model, recipe, "", source.example_inputs), "", coverage)

    def skeleton(
        self, model: nn.Module, recipe: DynamicPerRowRecipe, graph: str, example_inputs: Mapping[str, Tensor]
    ) -> nn.Module:
        """Convert whatever weights the model has: this needs no data."""
        from torch import nn

        from tasks.quantize.int8_modules import Int8Embedding, Int8Linear, Int8Lstm

        for name, reason in _reasons(model, recipe).items():
            match model.get_submodule(name):
                case _ if reason:
                    continue
                case nn.Linear() as linear:
                    model.set_submodule(name, Int8Linear.of(linear))
                case nn.LSTM() as lstm:
                    model.set_submodule(name, Int8Lstm.of(lstm))
                case nn.Embedding() as embedding:
                    model.set_submodule(name, Int8Embedding.of(embedding))
        return model.eval()

    def library(self, workspace: Workspace) -> Path:
        """The operators."""
        from tasks.quantize.operators import find_or_compile

        return find_or_compile(workspace)

    def tolerance_share(self, recipe: DynamicPerRowRecipe) -> float:
        """The operators compute the same on every processor; a float module before them may move a value by a step."""
        return 1e-2


def _reasons(model: nn.Module, recipe: DynamicPerRowRecipe) -> dict[str, str]:
    """Why each module stays float, "" for those to quantize."""
    from torch import nn

    from tasks.quantize.coverage import excluded_modules, unnamed
    from tasks.quantize.packing import MOST_FEATURES

    types: set[type[nn.Module]] = {getattr(nn, name) for name in recipe.modules}
    types |= {nn.Embedding} if recipe.embedding_bits else set()
    excluded = excluded_modules(model, recipe.exclude)

    def why_float(name: str, module: nn.Module) -> str:
        if name in excluded:
            return "excluded by the recipe"
        # The exact type: a subclass may compute something else.
        if type(module) not in types:
            kind = next((kind.__name__ for kind in types if isinstance(module, kind)), "")
            return f"a subclass of {kind}, which may compute something else" if kind else unnamed(type(module).__name__)
        if not name:
            return "it is the whole model, which cannot be replaced"
        match module:
            case nn.LSTM(bidirectional=True):
                return "there is no kernel for two directions"
            case nn.LSTM() if module.proj_size:
                return "there is no kernel for projections"
            case nn.Embedding() if module.max_norm is not None:
                return "max_norm changes weights at every call"
        widths = [getattr(module, name, 0) for name in ("in_features", "input_size", "hidden_size")]
        if max(widths) > MOST_FEATURES:
            return f"sums over more than {MOST_FEATURES:,} features do not fit into 32 bits"
        return ""

    return {name: why_float(name, module) for name, module in model.named_modules()}
