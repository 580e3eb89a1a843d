"""The base classes of quantization methods. A method turns its recipes into specs, and names a converter.

A method's module does not import torch, because workload files are validated against its recipe. Its `Converter`, which
does the work, is imported on demand.
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
    """A converted model in evaluation mode, with the graph mode that was used ("" if there is no choice)."""

    model: nn.Module
    graph: str
    coverage: tuple[ModuleCoverage, ...]


@dataclass(frozen=True)
class Quantized(Converted):
    """A model to compile; ``products`` of its convolutions and matrix products must then run in int8."""

    products: int = 0


@dataclass(frozen=True)
class Trained:
    """A fine-tuned model that eager torch can run and exporters accept, with the graph mode of its training.

    ``paths`` maps each module's path to its path in the float model. ``folded`` maps each module that is folded into
    another one (a batch norm into its convolution) to the other one's path.
    """

    model: nn.Module
    graph: str
    paths: Mapping[str, str]
    folded: Mapping[str, str]


class Converter(ABC):
    """Applies a method's specs to torch modules."""

    @abstractmethod
    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model in evaluation mode, which may be changed.

        Raises
        ------
        QuantizationError
            The spec cannot be applied to this model.
        """

    @abstractmethod
    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Give a model the structure that `convert` would give it, with arbitrary parameters and without data.

        The saved tensors are then loaded into it, so that a quantized model is stored without a pickle.
        """

    def pack(self, model: nn.Module) -> nn.Module:
        """Arrange a model's loaded weights as its kernels need them; afterwards it may have no state dict."""
        return model

    def library(self, workspace: Workspace) -> Path | None:
        """Find or make the library of operators that converted models call, or return None if they need only torch's.

        The library is stored with the converted module, and loaded before the module is opened.

        Raises
        ------
        QuantizationError
            The library cannot be compiled on this host.
        """
        return None

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune a model, or find an earlier result; only for specs with training."""
        raise TypeError(f'method "{spec.recipe.method}" does not train')


class Method(ABC, Generic[R]):
    """One way to quantize a torch module."""

    recipe: ClassVar[type[Recipe]]  # the pydantic model of its recipes
    converts: ClassVar[str]  # "module:class" of its `Converter`
    quantizes: ClassVar[bool] = True  # whether it makes layers to compare with float ones
    needs: ClassVar[tuple[Need, ...]] = ()  # what a domain must provide besides a float model

    @abstractmethod
    def spec(self, recipe: R) -> Spec:
        """Return the spec of a recipe."""

    def converter(self) -> Converter:
        """Import and create the method's converter."""
        return cast(Converter, resolve_name(self.converts)())


def converter_of(spec: Spec) -> Converter:
    """Import and create the converter that applies a spec."""
    return METHODS[spec.recipe.method].converter()
