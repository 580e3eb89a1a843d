"""What a quantization method is: it converts a float model and can rebuild the result's structure without data.

A method's module imports no torch by itself, because workload files are validated against its recipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from tasks.domains.base import FineTunes, GivesCalibration
    from tasks.job import Workspace
    from tasks.quantize.source import ModelSource
    from tasks.refs import ModuleCoverage
    from tasks.workload.workload import Workload

    Need = type[GivesCalibration[Workload]] | type[FineTunes[Workload]]

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Converted:
    """A converted model in evaluation mode, with the graph mode that was taken ("" where there is no choice)."""

    model: nn.Module
    graph: str
    coverage: tuple[ModuleCoverage, ...]


class Method(ABC, Generic[R]):
    """One way to quantize a torch module."""

    recipe: ClassVar[type[Recipe]]  # what its recipes are validated with
    quantizes: ClassVar[bool] = True  # whether there are layers to compare with float ones
    exports: ClassVar[bool] = False  # whether torch.export takes the converted module
    needs: ClassVar[tuple[Need, ...]] = ()  # what a domain must be able to do, besides giving a float model

    @abstractmethod
    def convert(self, model: nn.Module, recipe: R, source: ModelSource) -> Converted:
        """Quantize a float model in evaluation mode, which may be changed.

        Raises
        ------
        QuantizationError
            The recipe cannot be carried out on this model.
        """

    @abstractmethod
    def skeleton(self, model: nn.Module, recipe: R, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Give a model the structure that `convert` gave it, with arbitrary parameters and without data.

        The saved tensors are then put into it, so that no pickle is needed to store a quantized model.
        """

    def library(self, workspace: Workspace) -> Path | None:
        """Find or make the library of operators that converted models call, where they call any besides torch's.

        It is kept beside the converted module, and loaded before that is opened.

        Raises
        ------
        QuantizationError
            It cannot be made here.
        """
        return None

    def tolerance_share(self, recipe: R) -> float:
        """How far an output may be off on another processor, as a share of its range.

        In int8 a last digit can move an activation to the next of its 256 (with VNNI, or 128 without) steps, and such
        steps add up from layer to layer.
        """
        return 5e-2

    def couples_rows(self, recipe: R) -> bool:
        """Whether what a model computes for a row depends on the other rows of the call.

        It does where the range of an activation is taken from all rows of a call together.
        """
        return False

    def running(self, recipe: R) -> AbstractContextManager[None]:
        """Set what converting, loading and calling the model need of the process: the quantized engine."""
        from tasks.quantize.engine import quantized_engine

        return quantized_engine(recipe.engine)

    def quietly(self) -> AbstractContextManager[None]:
        """Silence the warnings of what upstream has deprecated, around converting and rebuilding a model."""
        from tasks.quantize.engine import without_deprecations

        return without_deprecations()


class PlainRecipe(Recipe):
    """A recipe whose result is an ordinary module: no quantized engine runs."""

    @property
    def quantized_engine(self) -> None:
        """No quantized kernel of torch's runs."""
        return


P = TypeVar("P", bound=PlainRecipe)


class PlainMethod(Method[P]):
    """A method off torch's deprecated stacks: ordinary modules and tensors, which torch.export takes."""

    exports = True

    def running(self, recipe: P) -> AbstractContextManager[None]:
        """Nothing of the process needs to be set."""
        return nullcontext()

    def quietly(self) -> AbstractContextManager[None]:
        """Nothing deprecated is used."""
        return nullcontext()
