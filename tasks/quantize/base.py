"""What a quantization method is: it says what its recipes ask for, and names what converts a float model.

A method's module imports no torch, because workload files are validated against its recipe. The work is done by a
`Converter`, imported when it is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from tasks.extensions import METHODS, Need
from tasks.quantize.spec import Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from tasks.job import Workspace
    from tasks.quantize.source import ModelSource
    from tasks.refs import ModuleCoverage

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Converted:
    """A converted model in evaluation mode, with the graph mode that was taken ("" if there is no choice)."""

    model: nn.Module
    graph: str
    coverage: tuple[ModuleCoverage, ...]


@dataclass(frozen=True)
class Quantized(Converted):
    """What can be compiled; ``products`` is how many of its convolutions and matrix products must run in int8 then."""

    products: int = 0


@dataclass(frozen=True)
class Trained:
    """A fine-tuned model that eager torch can run and exporters take, with the graph mode that it was trained in.

    ``paths`` gives the float model's path of each of its modules; ``folded`` modules computed within another one (a
    batch norm within its convolution), with its path.
    """

    model: nn.Module
    graph: str
    paths: Mapping[str, str]
    folded: Mapping[str, str]


class Converter(ABC):
    """Carries a method's specs out on torch modules."""

    @abstractmethod
    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model in evaluation mode, which may be changed.

        Raises
        ------
        QuantizationError
            The spec cannot be carried out on this model.
        """

    @abstractmethod
    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Give a model the structure that `convert` gave it, with arbitrary parameters and without data.

        The saved tensors are then put into it, so that no pickle is needed to store a quantized model.
        """

    def pack(self, model: nn.Module) -> nn.Module:
        """Bring a model's loaded weights into the order that its kernels read; it may have no state dict then."""
        return model

    def library(self, workspace: Workspace) -> Path | None:
        """Find or make the library of operators that converted models call, if they call any besides torch's.

        It is kept beside the converted module, and loaded before that is opened.

        Raises
        ------
        QuantizationError
            It cannot be made here.
        """
        return None

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune, or find what was fine-tuned before; only for specs with training."""
        raise TypeError(f'method "{spec.recipe.method}" does not train')


class Method(ABC, Generic[R]):
    """One way to quantize a torch module."""

    recipe: ClassVar[type[Recipe]]  # what its recipes are validated with
    converts: ClassVar[str]  # "module:class" of its `Converter`
    quantizes: ClassVar[bool] = True  # whether there are layers to compare with float ones
    needs: ClassVar[tuple[Need, ...]] = ()  # what a domain must give besides a float model

    @abstractmethod
    def spec(self, recipe: R) -> Spec:
        """Say what a recipe asks for."""

    def converter(self) -> Converter:
        """Import what carries specs out."""
        return cast(Converter, resolve_name(self.converts)())


def converter_of(spec: Spec) -> Converter:
    """Import what carries a spec out."""
    return METHODS[spec.recipe.method].converter()
